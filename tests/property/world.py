"""The database as a state machine sees it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any, TypeVar

import asyncpg

T = TypeVar("T")


class World:
    """Runs one statement after the other; each example uses its own topic."""

    def __init__(self, runner: asyncio.Runner, conn: Any) -> None:
        self.conn = conn
        self._runner = runner
        self._numbers = itertools.count()

    def new_name(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(act)

    def fetch(self, sql: str, *args: Any) -> list[Any]:
        rows: list[Any] = self.run(self.conn.fetch(sql, *args))
        return rows

    def value(self, sql: str, *args: Any) -> Any:
        return self.run(self.conn.fetchval(sql, *args))

    def refusal(self, sql: str, *args: Any) -> str | None:
        """Return the code with which the server refuses a statement, or None if it does not."""
        try:
            self.value(sql, *args)
        except asyncpg.PostgresError as error:
            return str(error.sqlstate)
        return None
