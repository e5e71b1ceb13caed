"""Work in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, TypeVar

import asyncpg

from bench.lab import connection
from postbus._runtime.event_loop import run
from postbus.errors import PostbusError

T = TypeVar("T")

# Forked from a process that has done nothing but import the benchmarks, which takes longer than many measurements.
_FRESH = multiprocessing.get_context("forkserver")
_FRESH.set_forkserver_preload(["bench.run"])

_LONGEST = 300.0  # seconds
_GATE = 8_042_026  # the advisory lock that makes processes begin at the same time
_ARE_AT_THE_GATE = """
    select count(*) >= $1 from pg_locks join pg_database d on d.oid = database
     where locktype = 'advisory' and datname = current_database() and objid = $2::bigint::oid and not granted
"""


class ProcessFailed(PostbusError):
    """A process ended without a result. Standard error has the reason."""


Work = Callable[[], Coroutine[Any, Any, T]]
"""The function that a process runs in its event loop. It is pickled, so by its name."""


async def elsewhere(work: Work[T]) -> T:
    """Do some work in a fresh process. That ends also if this task is cancelled or this process killed."""
    ours, theirs = _FRESH.Pipe(duplex=False)
    process = _FRESH.Process(target=_run, args=(theirs, work), daemon=True)
    process.start()
    theirs.close()  # so that this process notices its end
    try:
        await _readable(ours)
        result: T = ours.recv()
        return result
    except EOFError:
        raise ProcessFailed(f"a process of the benchmark ended early: {work}") from None
    finally:
        process.terminate()
        process.join()
        ours.close()


async def until(dsn: str, is_so: str, *args: object, worker: asyncio.Task[Any]) -> None:
    """Wait until a query answers true, or the process of `worker` has ended, which is an error."""
    async with connection(dsn) as conn, asyncio.timeout(_LONGEST):
        while not await conn.fetchval(is_so, *args):
            await asyncio.wait([worker], timeout=0.05)
            if worker.done():
                raise ProcessFailed(f"a process of the benchmark ended early, with {worker.result()!r:.200}")


async def announce_end(conn: asyncpg.Connection, word: str = "over") -> None:
    """Tell all processes that the run, or a part of it, is over: see until_over."""
    await conn.execute(f"create table {word} ()")


async def until_over(dsn: str, word: str = "over") -> None:
    """Wait until announce_end was called for the run, or for a part of it."""
    async with connection(dsn) as conn:
        await until_true(conn, "select to_regclass($1) is not null", word, look=0.1)


async def until_over_or_ended(dsn: str, worker: asyncio.Task[Any], word: str = "over") -> None:
    """The same, or until a worker has ended by itself."""
    over = asyncio.create_task(until_over(dsn, word))
    await asyncio.wait([over, worker], return_when=asyncio.FIRST_COMPLETED)
    over.cancel()


async def until_true(conn: asyncpg.Connection, is_so: str, *args: object, look: float) -> None:
    """Wait until a query answers true. Asks every `look` seconds."""
    while True:
        if await conn.fetchval(is_so, *args):
            return
        await asyncio.sleep(look)


async def together(dsn: str, works: Sequence[Work[T]]) -> list[T]:
    """Do several works, each in a fresh process. All begin when the last of them has reached the gate."""
    async with connection(dsn) as gate:
        await gate.execute("select pg_advisory_lock($1)", _GATE)
        started = [asyncio.create_task(elsewhere(work)) for work in works]
        for task in started:
            await until(dsn, _ARE_AT_THE_GATE, len(works), _GATE, worker=task)
    return await asyncio.gather(*started)


async def pass_the_gate(dsn: str) -> None:
    """Wait until all processes that begin at the same time have come here."""
    async with connection(dsn) as conn:
        await conn.execute("select pg_advisory_lock_shared($1)", _GATE)


@contextlib.contextmanager
def helpers(count: int) -> Iterator[Executor]:
    """A pool of processes. They end with the block, or with this process."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=_FRESH, initializer=_begin_to_watch)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        # Without waiting, since one may be busy with work that is not needed any more.
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
            process.join()


@contextlib.contextmanager
def doomed(work: Work[object]) -> Iterator[ForkServerProcess]:
    """A process that the caller kills."""
    process = _FRESH.Process(target=_run_alone, args=(work,), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


async def _readable(connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(connection.fileno(), is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(connection.fileno())
        os.set_blocking(connection.fileno(), True)  # which uvloop has changed


def _run(answer: Connection, work: Work[object]) -> None:
    _begin_to_watch()
    answer.send(run(work()))


def _run_alone(work: Work[object]) -> None:
    _begin_to_watch()
    run(work())


def _begin_to_watch() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
