"""A process that publishes, and writes down what it tried and what it knows of each transaction's end.

Several clerks work at a time, each with keys of its own. Some transactions are rolled back, some stay open for a
while, some send to several topics, some publish many messages with one call. A clerk whose COMMIT was not answered
leaves the key it had: whether that message comes before or after the next one is not ours to know.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from faults.arguments import parser
from faults.journal import AnyRecord, Journal, PublishAttempt, TransactionCommitted, TransactionFailed
from faults.modes import MODES, Mode
from postbus import Bus, CommitUnknown, PostbusError

_KEYS = 3  # of a clerk, for each mode
_PATIENCE = 4.0  # seconds for a statement, before the connection is given up

_ERRORS = (
    PostbusError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


class Producer:
    """Publishes one transaction after the other."""

    def __init__(self, name: str, bus: Bus, journal: Journal, args: argparse.Namespace) -> None:
        self._name = name
        self._bus = bus
        self._journal = journal
        self._modes: Sequence[Mode] = args.modes
        self._keyless = [mode for mode in self._modes if not mode.options.get("ordered")]
        self._args = args
        self._random = random.Random(f"{args.seed} {name}")
        self._transactions = itertools.count()
        self._generations = itertools.count()
        self._keys = {mode.name: [self._new_key() for _ in range(_KEYS)] for mode in self._modes}
        self._numbers: dict[tuple[str, str], int] = {}
        self._conn: Any = None

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._publish()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._random.expovariate(self._args.rate))
        if self._conn is not None:
            self._conn.terminate()

    async def _publish(self) -> None:
        transaction = f"{self._name}.{next(self._transactions)}"
        in_bulk = bool(self._keyless) and self._random.random() < 0.05
        tried = self._bulk(transaction) if in_bulk else self._some(transaction)
        self._journal.note(*tried)
        known: AnyRecord | None
        try:
            async with asyncio.timeout(_PATIENCE):
                known = await (
                    self._send(tried[0])
                    if len(tried) == 1 and self._random.random() < 0.2
                    else self._commit(tried, in_bulk)
                )
        except _ERRORS:
            known = TransactionFailed(transaction)
        if known is not None:
            self._journal.note(known)
        if not isinstance(known, TransactionCommitted):
            self._leave_keys(tried)
            if self._conn is not None:
                self._conn.terminate()
                self._conn = None
            await asyncio.sleep(0.05)

    async def _send(self, tried: PublishAttempt) -> AnyRecord | None:
        try:
            await asyncio.shield(self._bus.send(MODES[tried.mode].entry, _payload(tried), key=tried.key))
        except CommitUnknown:
            return None
        except TimeoutError:
            return None
        except asyncio.CancelledError:  # its commit goes on
            return None
        return TransactionCommitted(tried.transaction)

    async def _commit(self, tried: Sequence[PublishAttempt], in_bulk: bool) -> AnyRecord | None:
        """Report what is known afterwards. An error before COMMIT is raised."""
        if self._conn is None:
            self._conn = await asyncpg.connect(
                self._args.dsn, statement_cache_size=self._args.statement_cache, timeout=_PATIENCE
            )
        transaction = self._conn.transaction(
            isolation=self._random.choice(["read_committed"] * 8 + ["repeatable_read"] * 2)
        )
        await transaction.start()
        if in_bulk:
            await self._bus.publish_many(self._conn, MODES[tried[0].mode].entry, [_payload(one) for one in tried])
        else:
            for one in tried:
                await self._bus.publish(self._conn, MODES[one.mode].entry, _payload(one), key=one.key)
        if self._random.random() < 0.05:  # so that others with later ids commit before
            await asyncio.sleep(self._random.uniform(0.05, 0.5))
        if self._random.random() < 0.1:
            await transaction.rollback()
            return TransactionFailed(tried[0].transaction)
        try:
            await transaction.commit()
        except asyncpg.PostgresError as error:
            # The server's own word that it did not commit; but not that of one that is going down.
            is_known = error.sqlstate is not None and error.sqlstate[:2] in ("40", "25", "23")
            return TransactionFailed(tried[0].transaction) if is_known else None
        except (*_ERRORS, asyncio.CancelledError):
            return None
        return TransactionCommitted(tried[0].transaction)

    def _some(self, transaction: str) -> list[PublishAttempt]:
        modes = self._random.sample(self._modes, self._random.choice([1, 1, 1, min(2, len(self._modes))]))
        return [self._next(mode, transaction) for mode in modes for _ in range(self._random.choice([1, 1, 3]))]

    def _bulk(self, transaction: str) -> list[PublishAttempt]:
        """Messages for one topic, published without a key: what tells them apart is never used again."""
        mode = self._random.choice(self._keyless)
        return [
            PublishAttempt(mode.name, self._new_key(), 1, transaction) for _ in range(self._random.randrange(2, 20))
        ]

    def _next(self, mode: Mode, transaction: str) -> PublishAttempt:
        key = self._random.choice(self._keys[mode.name])
        n = self._numbers[mode.name, key] = self._numbers.get((mode.name, key), 0) + 1
        is_poison = self._random.random() < self._args.poison
        return PublishAttempt(mode.name, key, n, transaction, is_poison)

    def _leave_keys(self, tried: Sequence[PublishAttempt]) -> None:
        for one in tried:
            keys = self._keys[one.mode]
            if one.key in keys:
                keys[keys.index(one.key)] = self._new_key()

    def _new_key(self) -> str:
        return f"{self._name}-{next(self._generations)}"


def _payload(tried: PublishAttempt) -> dict[str, Any]:
    return {"key": tried.key, "n": tried.n, "is_poison": tried.is_poison, "padding": "." * (tried.n % 200)}


async def publish(args: argparse.Namespace) -> None:
    """Publish until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Journal(args.journal) as journal:
        async with _opened(args.dsn) as bus:
            clerks = [Producer(f"{os.getpid()}.{n}", bus, journal, args) for n in range(args.clerks)]
            async with asyncio.TaskGroup() as tasks:
                for clerk in clerks:
                    tasks.create_task(clerk.run(stop))


@asynccontextmanager
async def _opened(dsn: str) -> AsyncIterator[Bus]:
    bus = Bus.open(dsn)
    try:
        yield bus
    finally:
        with suppress(*_ERRORS):
            await asyncio.wait_for(bus.close(), 5)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--clerks", type=int, default=4)
    options.add_argument("--rate", type=float, default=25.0, help="transactions of a clerk in a second")
    options.add_argument("--poison", type=float, default=0.0, help="how many of the messages kill their handler")
    options.add_argument("--statement-cache", type=int, default=100)
    asyncio.run(publish(options.parse_args()))


if __name__ == "__main__":
    main()
