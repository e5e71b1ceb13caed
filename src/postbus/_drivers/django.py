"""The connections of Django."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from postbus._drivers.base import is_over, with_percent_s
from postbus._drivers.transaction_end import Action, when_over


class DjangoDriver:
    """django.db.connection, or one of django.db.connections."""

    is_async = False

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        with conn.cursor() as cursor:
            cursor.execute(with_percent_s(sql), args)
            return cursor.fetchone()[0]

    def when_ended(self, conn: Any, action: Action) -> None:
        if conn.in_atomic_block:
            # Django has a hook for COMMIT only. On ROLLBACK, also to a savepoint, it drops the hook.
            ended = _Once(action)
            conn.on_commit(ended, robust=True)
            when_over(self._of_this_thread(conn), partial(_has_dropped, ended), ended)
        elif conn.get_autocommit():
            action()
        else:  # the program manages transactions itself, for which Django has no hook
            when_over(conn.connection, is_over, action)

    def has_committed(self, conn: Any) -> bool:
        return not conn.in_atomic_block and bool(conn.get_autocommit())

    @staticmethod
    def _of_this_thread(conn: Any) -> Any:
        """The connection itself: `django.db.connection` is another one in each thread."""
        return conn._connections[conn._alias] if "_alias" in vars(conn) else conn


class _Once:
    """An action that is called at most once, by whichever of two callers comes first."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self._is_left = threading.Lock()

    def __call__(self) -> None:
        if self._is_left.acquire(blocking=False):
            self._action()


def _has_dropped(hook: Action, conn: Any) -> bool:
    """Whether a connection of Django has called a hook for COMMIT, or will never do so."""
    return all(one[1] is not hook for one in conn.run_on_commit)
