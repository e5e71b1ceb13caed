"""Where a run takes place: a server, and what stands between it and its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from bench.peers import servers as brokers
from bench.peers import system
from faults.servers import NotInstalled
from faults.servers.clock import Clock
from faults.servers.disk import TABLES, WAL, Disk
from faults.servers.pgbouncer import PgBouncer
from faults.servers.postgres import Server, dsn_of_all
from faults.servers.proxy import Proxy
from faults.servers.run import USER, Servers
from faults.stream import make_stream


@dataclass
class Scene:
    """A server that runs, and how clients reach it. The rest is there where the fault needs it."""

    server: Server
    dsn: str
    proxy: Proxy | None = None
    standby: Server | None = None
    disk: Disk | None = None
    clock: Clock | None = None
    stream: str = ""
    """The address of a NATS server."""


Stage = Callable[[Servers, Mapping[str, str]], AbstractAsyncContextManager[Scene]]


@asynccontextmanager
async def _running(server: Server) -> AsyncIterator[Server]:
    try:
        await server.start()
        yield server
    finally:
        await server.remove()


@asynccontextmanager
async def directly(servers: Servers, settings: Mapping[str, str]) -> AsyncIterator[Scene]:
    async with _running(await servers.new(settings=settings)) as server:
        yield Scene(server, server.dsn(user=USER))


@asynccontextmanager
async def through_a_proxy(servers: Servers, settings: Mapping[str, str]) -> AsyncIterator[Scene]:
    async with directly(servers, settings) as scene:
        scene.proxy = Proxy(scene.dsn)
        await scene.proxy.start()
        scene.dsn = scene.proxy.dsn
        try:
            yield scene
        finally:
            await scene.proxy.stop()


@asynccontextmanager
async def with_a_standby(servers: Servers, settings: Mapping[str, str]) -> AsyncIterator[Scene]:
    async with directly(servers, settings) as scene:
        scene.standby = await servers.standby_of(scene.server)
        scene.dsn = dsn_of_all([scene.server.port, scene.standby.port], user=USER)
        try:
            yield scene
        finally:
            await scene.standby.remove()


@asynccontextmanager
async def with_a_stream(servers: Servers, settings: Mapping[str, str]) -> AsyncIterator[Scene]:
    """A NATS server with a stream beside it."""
    async with AsyncExitStack() as stack:
        scene = await stack.enter_async_context(directly(servers, settings))
        try:
            scene.stream = (await stack.enter_async_context(brokers.nats())).address
        except system.Absent as absent:
            raise NotInstalled(str(absent)) from absent
        await make_stream(scene.stream)
        yield scene


def with_a_small_disk(part: str, megabytes: int) -> Stage:
    @asynccontextmanager
    async def stage(servers: Servers, settings: Mapping[str, str]) -> AsyncIterator[Scene]:
        server, disk = await servers.with_disk(part, megabytes=megabytes, settings=settings)
        async with _running(server):
            yield Scene(server, server.dsn(user=USER), disk=disk)

    return stage


with_little_space = with_a_small_disk(TABLES, 96)
with_little_wal = with_a_small_disk(WAL, 96)


@asynccontextmanager
async def with_a_clock(servers: Servers, settings: Mapping[str, str]) -> AsyncIterator[Scene]:
    server, clock = await servers.with_clock(settings=settings)
    async with _running(server):
        yield Scene(server, server.dsn(user=USER), clock=clock)


@asynccontextmanager
async def through_pgbouncer(servers: Servers, settings: Mapping[str, str]) -> AsyncIterator[Scene]:
    """Clients share a few connections, transaction by transaction."""
    async with directly(servers, settings) as scene:
        pooler = PgBouncer(
            servers.installation,
            servers.new_folder(),
            host="127.0.0.1",
            server_port=scene.server.port,
            pool_size=20,
        )
        await pooler.start()
        scene.dsn = pooler.dsn(user=USER)
        try:
            yield scene
        finally:
            await pooler.stop()
