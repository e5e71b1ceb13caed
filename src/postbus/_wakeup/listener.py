"""Listening on one connection for the wake-ups that other processes send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from postbus._db.connect import connect
from postbus._db.error_map import DRIVER_ERRORS, translate
from postbus._db.statements.log import SERVER_SINCE_CRASH
from postbus._runtime.loop import Backoff, pause
from postbus._wakeup.waiters import Wakers
from postbus.errors import DatabaseUnavailable

CHANNEL = "postbus"
_CHECK_EVERY = 60.0  # seconds between two checks that the listening connection is alive


class Listener:
    """Passes the wake-ups of other processes on to the wakers of this one."""

    def __init__(self, dsn: str, wakers: Wakers, on_lost: Callable[[], None] = lambda: None) -> None:
        self._dsn = dsn
        self._wakers = wakers
        self._on_lost = on_lost
        """Called when the server may have crashed."""
        self._server: object = None
        """The start of the server at the last connection, which a crash changes."""

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until `stop` is set, and connect again whenever the connection is lost."""
        backoff = Backoff()
        while not stop.is_set():
            try:
                await self._listen(stop, backoff)
            except DRIVER_ERRORS as error:
                if not isinstance(translate(error), DatabaseUnavailable):
                    raise
                await pause(backoff.next(), stop)

    async def _listen(self, stop: asyncio.Event, backoff: Backoff) -> None:
        conn = await connect(self._dsn)
        lost = asyncio.Event()
        # The driver does not say why an idle connection ended. From PostgreSQL 15 on, the server's start shows a crash
        # at the next connection; on older ones each lost connection counts as one.
        sees_crashes = conn.get_server_version().major >= 15

        def was_lost(_: object) -> None:
            lost.set()
            if not sees_crashes:
                self._on_lost()

        try:
            conn.add_termination_listener(was_lost)
            if sees_crashes:
                await self._check_for_crash(conn)
            await conn.add_listener(CHANNEL, lambda _conn, _pid, _channel, payload: self._on_notify(payload))
            backoff.reset()
            self._wakers.wake_all()  # what was published while nobody listened sent no wake-up here
            while not stop.is_set() and not lost.is_set():
                await pause(_CHECK_EVERY, stop, lost)
                if not stop.is_set() and not lost.is_set():  # a dead peer sends nothing, so ask
                    await conn.execute("select 1", timeout=10)
        except Exception:
            if not sees_crashes:
                self._on_lost()
            raise
        finally:
            conn.remove_termination_listener(was_lost)
            conn.terminate()

    async def _check_for_crash(self, conn: Any) -> None:
        """Call `on_lost` if the server has crashed since the last connection."""
        before, self._server = self._server, await conn.fetchval(f"select {SERVER_SINCE_CRASH}", timeout=10)
        if before not in (None, self._server):
            self._on_lost()

    def _on_notify(self, payload: object) -> None:
        try:
            topic = int(str(payload))
        except ValueError:  # any user of the database may notify on the channel
            return
        self._wakers.wake(topic)
