"""Connections of asyncpg."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from postbus._drivers.base import is_over
from postbus._drivers.transaction_end import Action, look_at, weakly, when_over


class AsyncpgDriver:
    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return await conn.fetchval(sql, *args)

    def when_ended(self, conn: Any, action: Action) -> None:
        if when_over(conn, is_over, action, is_told=True) and not is_over(conn):
            # It tells of each statement that it has run, so also of the one that ends the transaction.
            teller = partial(look_at, id(conn))
            conn.add_query_logger(teller)
            when_over(conn, is_over, partial(_tell_no_more, weakly(conn), teller), is_told=True)

    def has_committed(self, conn: Any) -> bool:
        return is_over(conn)


def _tell_no_more(asyncpg_connection: Callable[[], Any], teller: Callable[[object], None]) -> None:
    conn = asyncpg_connection()
    if conn is not None:
        conn.remove_query_logger(teller)
