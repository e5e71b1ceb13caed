"""Listens on one connection for the wake-ups that other processes send."""

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
_STILL_THERE = 60.0  # seconds between two looks at whether the listening connection still lives


class Listener:
    """Hears the rings of other processes."""

    def __init__(self, dsn: str, wakers: Wakers, on_lost: Callable[[], None] = lambda: None) -> None:
        self._dsn = dsn
        self._wakers = wakers
        self._on_lost = on_lost
        """Called when the server has crashed, as far as the connection can tell."""
        self._server: object = None

    async def run(self, stop: asyncio.Event) -> None:
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

        tells_crashes = conn.get_server_version().major >= 15

        def was_lost(_: object) -> None:
            lost.set()
            if not tells_crashes:
                self._on_lost()

        try:
            conn.add_termination_listener(was_lost)
            if tells_crashes:  # why a connection ended while it was idle, the driver does not say
                await self._compare(conn)
            await conn.add_listener(CHANNEL, lambda _conn, _pid, _channel, payload: self._hear(payload))
            backoff.reset()
            self._wakers.wake_all()  # for what was rung while nobody listened
            while not stop.is_set() and not lost.is_set():
                await pause(_STILL_THERE, stop, lost)
                if not stop.is_set() and not lost.is_set():  # a dead peer says nothing: ask
                    await conn.execute("select 1", timeout=10)
        except Exception:
            if not tells_crashes:
                self._on_lost()
            raise
        finally:
            conn.remove_termination_listener(was_lost)
            conn.terminate()

    async def _compare(self, conn: Any) -> None:
        """Find out whether the server has crashed since the last connection."""
        before, self._server = self._server, await conn.fetchval(f"select {SERVER_SINCE_CRASH}", timeout=10)
        if before not in (None, self._server):
            self._on_lost()

    def _hear(self, payload: object) -> None:
        try:
            topic = int(str(payload))
        except ValueError:  # anybody may notify on the channel
            return
        self._wakers.wake(topic)
