"""An application on the same database: short transactions on a table of its own, and their durations."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import asyncpg

from bench.lab import connection
from bench.processes import until_over

_CONNECTIONS = 16
ORDERS = 20_000  # rows in the table at the beginning
_PATIENCE = 0.2  # seconds: a transaction that is later than this is left out
_CREATE = """
    create table orders (
        id bigint generated always as identity primary key, customer bigint not null, cents bigint not null,
        state text not null default 'new', changed_at timestamptz not null default now()
    )
"""
_FILL = "insert into orders (customer, cents) select n % 5000, n from generate_series(1, $1) as n"
_INSERT = "insert into orders (customer, cents) values ($1, $1) returning id"
_UPDATE = "update orders set state = 'paid', changed_at = now() where id = $1"
_SELECT = "select * from orders where id = $1"


class Done(NamedTuple):
    """A finished transaction. Its times are time.monotonic(), which all processes of a machine share."""

    began: float
    seconds: float
    late: float
    """How late it began, because no connection or processor was free."""


async def create(conn: asyncpg.Connection) -> None:
    await conn.execute(_CREATE)
    await conn.execute(_FILL, ORDERS)
    await conn.execute("vacuum analyze orders")


async def run(dsn: str, rate: float) -> list[Done]:
    """Insert, update and query by turns, each at its scheduled time, until the run is over."""
    rng = random.Random(4)
    done: list[Done] = []
    async with contextlib.AsyncExitStack() as stack:
        idle: asyncio.Queue[asyncpg.Connection] = asyncio.Queue()
        for _ in range(_CONNECTIONS):
            idle.put_nowait(await stack.enter_async_context(connection(dsn)))
        over = asyncio.create_task(until_over(dsn))
        began = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        number = 0
        while not over.done():
            due = began + number / rate
            began += max(time.monotonic() - due - _PATIENCE, 0)
            await asyncio.sleep(max(due - time.monotonic(), 0))
            conn = await idle.get()
            task = asyncio.create_task(_transact(conn, number, rng.randint(1, ORDERS), due, done))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(functools.partial(_give_back, idle, conn))
            number += 1
        await asyncio.gather(over, *tasks)
    return done


def _give_back(idle: asyncio.Queue[asyncpg.Connection], conn: asyncpg.Connection, _: object) -> None:
    idle.put_nowait(conn)


async def _transact(conn: asyncpg.Connection, number: int, id: int, due: float, done: list[Done]) -> None:
    began = time.monotonic()
    await conn.fetch((_INSERT, _UPDATE, _SELECT)[number % 3], id)
    done.append(Done(began, time.monotonic() - began, began - due))


def p95_ms(done: Sequence[Done]) -> float:
    """The p95 of the durations."""
    ordered = sorted(one.seconds for one in done)
    return 1000 * ordered[int(len(ordered) * 0.95)] if ordered else 0.0


def worst_window_ms(done: Sequence[Done], seconds: float) -> float:
    """The largest p95 of windows of some seconds."""
    if not done:
        return 0.0
    windows: dict[int, list[Done]] = {}
    for one in done:
        windows.setdefault(int((one.began - done[0].began) / seconds), []).append(one)
    return max(p95_ms(window) for window in windows.values() if len(window) >= 100 or len(windows) == 1)
