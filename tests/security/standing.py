"""A server that runs for all attacks of a module: in a thread of its own, on a database of its own."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import asyncpg
import httpx

from http_api.serving import serving
from postbus import Bus
from postbus.embedded import EmbeddedPostgres
from postbus.results.access import TokenRole
from support.fix_database import _make_template

T = TypeVar("T")
_TEMPLATE = "postbus_template"


class Standing:
    """Servers on one database, and what attacks need: tokens, requests, and the bus behind the servers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bus: Bus, dsn: str, urls: list[str]) -> None:
        self._loop = loop
        self.bus = bus
        self.dsn = dsn
        self.urls = urls
        self._client = httpx.Client(timeout=30, trust_env=False)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Do something in the servers' loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def token(self, *roles: str, **limits: Any) -> str:
        """Make a token; limits are topics, groups and payloads."""
        return self.run(self.bus.admin.create_token("test", cast("list[TokenRole]", list(roles)), **limits)).token

    def sql(self, statement: str, *args: Any) -> list[dict[str, Any]]:
        """Return rows, as the owner of the schema gets them."""

        async def fetch() -> list[dict[str, Any]]:
            conn: Any = await asyncpg.connect(self.dsn)
            try:
                return [dict(row) for row in await conn.fetch(statement, *args)]
            finally:
                await conn.close()

        return self.run(fetch())

    def ask(
        self,
        token: str | None,
        method: str,
        path: str,
        json: Any = None,
        *,
        server: int = 0,
        params: Any = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request to one of the servers. The path goes out as it is."""
        given = {"authorization": f"Bearer {token}"} if token else {}
        url = self.urls[server] + path
        return self._client.request(method, url, json=json, params=params, headers=given | (headers or {}))

    def stream(self, token: str, path: str, until: bytes, **headers: str) -> bytes:
        """Return the beginning of a stream, up to something that has to come."""
        sent = {"authorization": f"Bearer {token}", **headers}
        read = b""
        with self._client.stream("GET", self.urls[0] + path, headers=sent) as answer:
            for some in answer.iter_raw():
                read += some
                if until in read:
                    break
        return read

    def close(self) -> None:
        self._client.close()


@contextmanager
def standing(postgres: EmbeddedPostgres, *, servers: int = 1, **settings: Any) -> Iterator[Standing]:
    """Run the servers on a fresh database; they require tokens."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="standing-servers")
    thread.start()
    ready: asyncio.Future[Standing] = asyncio.Future(loop=loop)
    stop = asyncio.Event()
    ending = asyncio.run_coroutine_threadsafe(_serve(postgres, servers, settings, ready, stop), loop)
    try:
        stood = asyncio.run_coroutine_threadsafe(_result(ready, ending), loop).result(60)
        yield stood
        stood.close()
    finally:
        loop.call_soon_threadsafe(stop.set)
        ending.result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _result(ready: asyncio.Future[Standing], ending: Any) -> Standing:
    serving_them = asyncio.wrap_future(ending)
    await asyncio.wait([ready, serving_them], return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        await serving_them
    return ready.result()


async def _serve(
    postgres: EmbeddedPostgres,
    servers: int,
    settings: dict[str, Any],
    ready: asyncio.Future[Standing],
    stop: asyncio.Event,
) -> None:
    root: Any = await asyncpg.connect(postgres.dsn())
    name = f"test_{secrets.token_hex(8)}"
    try:
        await _make_template(root, postgres)
        await root.execute(f"create database {name} template {_TEMPLATE}")
        dsn = postgres.dsn(name)
        async with asyncio.TaskGroup() as group:
            urls: list[asyncio.Future[str]] = [asyncio.Future() for _ in range(servers)]
            for url in urls:
                group.create_task(_one(dsn, settings, url, stop))
            async with Bus.open(dsn) as bus:
                addresses = [await url for url in urls]
                ready.set_result(Standing(asyncio.get_running_loop(), bus, dsn, addresses))
                await stop.wait()
    finally:
        await root.execute(f"drop database if exists {name} with (force)")
        await root.close()


async def _one(dsn: str, settings: dict[str, Any], url: asyncio.Future[str], stop: asyncio.Event) -> None:
    async with Bus.open(dsn) as bus, serving(bus, **{"auth": True, **settings}) as address:
        url.set_result(address)
        await stop.wait()
