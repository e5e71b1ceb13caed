"""Noticing that a transaction has ended on a connection that belongs to the caller.

Most drivers have no hook for it, so their connections are checked: soon at first, then less often. A check costs next
to nothing, because it only reads what the driver knows already. Nothing depends on it: a consumer that is not woken
finds the message by polling.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from postbus._runtime.log_events import event

Action = Callable[[], None]
IsOver = Callable[[Any], bool]

_FIRST_WAIT = 0.0005
_LONGEST_WAIT = 0.1
_GIVE_UP = 600.0  # seconds after which an open transaction is no longer checked
_LINGER = 1.0  # seconds that the thread stays while there are no transactions


def when_over(
    conn: Any, is_over: IsOver, action: Action, *, transaction: object = None, driver_reports: bool = False
) -> bool:
    """Call `action` soon after the transaction of `conn` has ended, and not before.

    `transaction` identifies it, for drivers that can: a transaction with another id comes after its end. Checks alone
    would not do, since a busy connection is hardly ever seen between two transactions.
    `driver_reports` means that the driver calls `check_one` then, so that frequent checks are not needed.
    Returns whether this is the first action of its transaction.
    """
    return _watch_of_here().add(conn, is_over, action, transaction, driver_reports=driver_reports)


def check_one(conn_id: int, _: object = None) -> None:
    """Act if the transaction of the connection with this id has ended, in the running event loop or in threads."""
    _watch_of_here().check_one(conn_id)


def check_now() -> None:
    """Act on all transactions that have ended by now, without waiting for the next check."""
    for watch in (_thread_watch, *list(_loop_watches.values())):
        watch.check()


class _Open:
    """An open transaction, and the actions to call after it."""

    def __init__(self, conn: Any, is_over: IsOver, transaction: object) -> None:
        self.transaction = transaction
        self.actions: list[Action] = []
        self._conn = weakly(conn)
        self._is_over = is_over
        self._until = time.monotonic() + _GIVE_UP

    def is_over(self) -> bool:
        conn = self._conn()
        try:
            return conn is None or self._is_over(conn) or time.monotonic() > self._until
        except Exception:
            return True  # the connection went back to its pool, or is otherwise no longer the caller's

    def act(self) -> None:
        for action in self.actions:
            try:
                action()
            except Exception as error:
                event(logging.DEBUG, "notifier.failed", error=error)


def weakly(conn: Any) -> Callable[[], Any]:
    """A weak reference: a connection that its owner drops must be free to close, and to roll back."""
    try:
        return weakref.ref(conn)
    except TypeError:  # asyncpg's pool keeps the connections that it lends
        return lambda: conn


class _Watch(ABC):
    """Watches open transactions, one per connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}
        self._wait = _LONGEST_WAIT

    def add(self, conn: Any, is_over: IsOver, action: Action, transaction: object, *, driver_reports: bool) -> bool:
        with self._lock:
            ended = None
            known = self._open.get(id(conn))
            is_new = known is None or known.transaction != transaction or known.is_over()
            if known is None or is_new:
                ended, known = known, _Open(conn, is_over, transaction)
                self._open[id(conn)] = known
            known.actions.append(action)
            if not driver_reports:
                self._wait = _FIRST_WAIT
        if ended is not None:
            ended.act()
        if driver_reports:
            self.check_one(id(conn))
        else:
            self.check()
        if self._open and not (driver_reports and self._is_scheduled()):
            self._check_soon()
        return is_new

    def check_one(self, conn_id: int) -> None:
        """Act if one connection's transaction has ended, whatever the number of others."""
        with self._lock:
            known = self._open.get(conn_id)
            if known is None or not known.is_over():
                return
            del self._open[conn_id]
        known.act()

    def check(self) -> None:
        """Act on all transactions that have ended."""
        with self._lock:
            ended = [conn_id for conn_id, one in self._open.items() if one.is_over()]
            over = [self._open.pop(conn_id) for conn_id in ended]
        for one in over:
            one.act()

    @abstractmethod
    def _check_soon(self) -> None:
        """Schedule the next check."""

    @abstractmethod
    def _is_scheduled(self) -> bool:
        """Whether the next check is scheduled."""

    def _next_wait(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 1.3, _LONGEST_WAIT)
        return wait


class _LoopWatch(_Watch):
    """Checks from an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = weakref.ref(loop)
        self._timer: asyncio.TimerHandle | None = None

    def _check_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = self._loop()
        if loop is not None:
            self._timer = loop.call_later(self._next_wait(), self._tick)

    def _is_scheduled(self) -> bool:
        return self._timer is not None

    def _tick(self) -> None:
        self._timer = None
        self.check()
        if self._open and self._timer is None:
            self._check_soon()


class _ThreadWatch(_Watch):
    """Checks from a thread of its own, for programs without an event loop. It ends when no transaction is open."""

    def __init__(self) -> None:
        super().__init__()
        self._added = threading.Event()
        self._thread: threading.Thread | None = None

    def forget(self) -> None:
        """Start anew in a forked child: it has no thread, and a lock that the parent's thread held stays locked."""
        self._lock, self._added = threading.Lock(), threading.Event()
        self._open, self._thread = {}, None

    def _check_soon(self) -> None:
        self._added.set()
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="postbus-watch", daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending
                    thread.start()
                    self._thread = thread

    def _is_scheduled(self) -> bool:
        return self._thread is not None

    def _run(self) -> None:
        while True:
            is_idle = not self._open
            was_added = self._added.wait(_LINGER if is_idle else self._next_wait())
            self._added.clear()
            self.check()
            with self._lock:
                if is_idle and not was_added and not self._open:
                    self._thread = None
                    return


_thread_watch = _ThreadWatch()
_loop_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWatch] = weakref.WeakKeyDictionary()


def _watch_of_here() -> _Watch:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _thread_watch
    watch = _loop_watches.get(loop)
    if watch is None:
        watch = _loop_watches[loop] = _LoopWatch(loop)
    return watch


os.register_at_fork(after_in_child=_thread_watch.forget)
