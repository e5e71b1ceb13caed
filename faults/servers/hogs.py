"""Clients that take away what others need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg


@asynccontextmanager
async def all_connections(dsn: str, *, leave: int = 0) -> AsyncIterator[int]:
    """Take all connections that the server has for this user, but `leave`, within the block. Yields how many."""
    taken: list[Any] = []
    try:
        while True:
            try:
                taken.append(await asyncpg.connect(dsn, timeout=10))
            except asyncpg.TooManyConnectionsError:
                break
        for conn in taken[:leave]:
            await conn.close()
        del taken[:leave]
        yield len(taken)
    finally:
        for conn in taken:
            conn.terminate()


@asynccontextmanager
async def open_transaction(dsn: str) -> AsyncIterator[Any]:
    """A transaction with an id, open within the block and then rolled back. Yields its connection."""
    conn: Any = await asyncpg.connect(dsn, timeout=10)
    try:
        await conn.execute("begin; select pg_current_xact_id()")
        yield conn
    finally:
        conn.terminate()


async def prepare(dsn: str, name: str, statements: Sequence[str]) -> None:
    """Leave a prepared transaction behind, which holds what it has locked and written until it is finished."""
    conn: Any = await asyncpg.connect(dsn, timeout=10)
    try:
        await conn.execute("; ".join(["begin", "select pg_current_xact_id()", *statements]))
        await conn.execute(f"prepare transaction '{name}'")
    finally:
        conn.terminate()


async def finish_prepared(dsn: str, name: str, *, commit: bool) -> None:
    """Commit a prepared transaction, or roll it back."""
    conn: Any = await asyncpg.connect(dsn, timeout=10)
    try:
        await conn.execute(f"{'commit' if commit else 'rollback'} prepared '{name}'")
    finally:
        conn.terminate()
