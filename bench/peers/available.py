"""The systems that can be measured here, and why the others cannot."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.lab import Lab
from bench.peers import servers
from bench.peers.handwritten import Handwritten
from bench.peers.jetstream import JetStream
from bench.peers.ours import Ours, PostbusLog, PostbusQueue
from bench.peers.pgq import Pgq
from bench.peers.pgqueuer_jobs import Pgqueuer
from bench.peers.procrastinate_jobs import Procrastinate
from bench.peers.rabbit import RabbitMq
from bench.peers.redis_streams import RedisStreams
from bench.peers.system import GROUP, Absent, System
from bench.processes import helpers
from postbus.errors import EmbeddedError

DEBIAN = Path("/usr/lib/postgresql/15/bin")
_PGQ = Path("/usr/share/postgresql/15/extension/pgq.control")

QUEUE, LOG = "postbus_queue", "postbus_log"
QUEUE_15, LOG_15 = "postbus_queue_pg15", "postbus_log_pg15"
RIVALS = {"handwritten": QUEUE, "pgqueuer": QUEUE, "procrastinate": QUEUE, "pgq": LOG_15}
"""The peers inside PostgreSQL, and the part of Postbus that does the same on the same server."""
BROKERS = {"nats_jetstream": LOG, "redis_streams": LOG, "rabbitmq": QUEUE}
"""The peers outside it, and the part of Postbus that is most like them."""

_INSIDE: Mapping[str, tuple[type[System], tuple[str, ...]]] = {
    QUEUE: (PostbusQueue, ()),
    LOG: (PostbusLog, ()),
    "handwritten": (Handwritten, ()),
    "pgqueuer": (Pgqueuer, ("pgqueuer",)),
    "procrastinate": (Procrastinate, ("procrastinate", "psycopg")),
}
_INSIDE_15: Mapping[str, type[System]] = {QUEUE_15: PostbusQueue, LOG_15: PostbusLog, "pgq": Pgq}
_OUTSIDE: Mapping[str, tuple[type[System], str, Callable[[], AbstractAsyncContextManager[servers.Server]]]] = {
    "nats_jetstream": (JetStream, "nats", servers.nats),
    "redis_streams": (RedisStreams, "redis", servers.redis),
    "rabbitmq": (RabbitMq, "aio_pika", servers.rabbitmq),
}
ORDER = (*_INSIDE, *_INSIDE_15, *_OUTSIDE)


@dataclass
class Available:
    """The systems that were found, and the absent ones with the reason."""

    helpers: Executor
    """Two other processes."""
    systems: dict[str, System] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    async def add(self, system: System) -> None:
        """Install a system, and try it. A peer that fails is absent; Postbus has to work."""
        try:
            await system.install()
            async with system.on(f"probe_{system.name}").created([GROUP]):
                self.versions[system.name] = await system.version()
        except Exception as error:
            if isinstance(system, Ours):
                raise
            self.versions.pop(system.name, None)
            raise Absent(f"it does not work here: {type(error).__name__}: {error}") from error
        self.systems[system.name] = system

    @contextlib.contextmanager
    def unless_absent(self, *names: str) -> Iterator[None]:
        """If the block finds something absent, note why and go on without it."""
        try:
            yield
        except (Absent, EmbeddedError) as error:
            self.absent.update(dict.fromkeys(names, str(error)))


@contextlib.asynccontextmanager
async def open_systems(lab: Lab) -> AsyncIterator[Available]:
    """Start the servers and install the systems. All of them end with the block."""
    async with AsyncExitStack() as stack:
        found = Available(stack.enter_context(helpers(2)))
        # All at once, since some take long to start.
        await asyncio.gather(
            _add_inside(found, stack, lab),
            _add_inside_15(found, stack),
            *(_add_outside(found, stack, name) for name in _OUTSIDE),
        )
        found.systems = {name: found.systems[name] for name in ORDER if name in found.systems}
        yield found


async def _add_inside(found: Available, stack: AsyncExitStack, lab: Lab) -> None:
    dsn = await stack.enter_async_context(lab.database())
    for name, (kind, needed) in _INSIDE.items():
        with found.unless_absent(name):
            _need(*needed)
            await found.add(kind(name, dsn))


async def _add_inside_15(found: Available, stack: AsyncExitStack) -> None:
    with found.unless_absent(*_INSIDE_15):
        lab = await asyncio.to_thread(stack.enter_context, _debian())
        dsn = await stack.enter_async_context(lab.database())
        for name, kind in _INSIDE_15.items():
            with found.unless_absent(name):
                await found.add(kind(name, dsn))


async def _add_outside(found: Available, stack: AsyncExitStack, name: str) -> None:
    kind, needed, server = _OUTSIDE[name]
    with found.unless_absent(name):
        _need(needed)
        await found.add(kind(name, (await stack.enter_async_context(server())).address))


@contextlib.contextmanager
def _debian() -> Iterator[Lab]:
    """A server of Debian's PostgreSQL 15, for which PgQ is packaged."""
    if not (DEBIAN / "postgres").exists() or not _PGQ.exists():
        raise Absent("PgQ for PostgreSQL 15 is not installed", remedy="apt-get install postgresql-15-pgq3")
    with Lab.open(bin_dir=str(DEBIAN)) as lab:
        yield lab


def _need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Absent(f"the Python package {module} is not installed", remedy="make peers")
