"""Connections of asyncpg."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from postbus._drivers.base import is_over
from postbus._drivers.transaction_end import Action, check_one, weakly, when_over


class AsyncpgDriver:
    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return await conn.fetchval(sql, *args)

    def when_ended(self, conn: Any, action: Action) -> None:
        if when_over(conn, is_over, action, driver_reports=True) and not is_over(conn):
            # asyncpg logs each statement that has run, so also the one that ends the transaction.
            logger = partial(check_one, id(conn))
            conn.add_query_logger(logger)
            when_over(conn, is_over, partial(_remove_logger, weakly(conn), logger), driver_reports=True)

    def has_committed(self, conn: Any) -> bool:
        return is_over(conn)


def _remove_logger(asyncpg_connection: Callable[[], Any], logger: Callable[[object], None]) -> None:
    conn = asyncpg_connection()
    if conn is not None:
        conn.remove_query_logger(logger)
