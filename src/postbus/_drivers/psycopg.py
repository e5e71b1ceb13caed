"""Connections of psycopg 3, synchronous and asynchronous."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

from postbus._drivers.base import is_over, with_percent_s
from postbus._drivers.transaction_end import Action, when_over


class PsycopgDriver:
    is_async = False

    def __init__(self) -> None:
        self._transactions: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        with self._cursor("Cursor", conn) as cursor:
            cursor.execute(self._with_transaction(sql), args)
            answer, self._transactions[conn] = cursor.fetchone()
        return answer

    def when_ended(self, conn: Any, action: Action) -> None:
        when_over(conn, is_over, action, transaction=self._transactions.get(conn))

    def has_committed(self, conn: Any) -> bool:
        return is_over(conn)

    @staticmethod
    def _cursor(kind: str, conn: Any) -> Any:
        """A cursor with %s and tuples, whatever factories the connection has."""
        return getattr(sys.modules["psycopg"], kind)(conn, row_factory=sys.modules["psycopg.rows"].tuple_row)

    @staticmethod
    def _with_transaction(sql: str) -> str:
        published = f"({with_percent_s(sql)}) as published (answer)"
        return f"select answer, pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text from {published}"


class AsyncPsycopgDriver(PsycopgDriver):
    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        async with self._cursor("AsyncCursor", conn) as cursor:
            await cursor.execute(self._with_transaction(sql), args)
            answer, self._transactions[conn] = await cursor.fetchone()
        return answer
