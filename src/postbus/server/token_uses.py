"""The last use of tokens: written in the background, and seldom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from postbus._db.store import Store
from postbus._runtime.loop import repeat
from postbus.errors import PostbusError

_APART = 60.0  # seconds between two notes of one token by one process
_EVERY = 5.0  # seconds between two writes
_MOST = 10_000
_PATIENCE = 1.0  # seconds


class TokenUses:
    """Collects which tokens are used, and writes that to the database. A process that dies loses the last ones."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._noted: dict[str, float] = {}
        self._waiting: dict[str, bytes] = {}

    def note(self, token_id: str, digest: bytes) -> None:
        """Note that a token was used."""
        now = time.monotonic()
        if now - self._noted.get(token_id, float("-inf")) < _APART:
            return
        if len(self._noted) >= _MOST:
            self._noted = {one: at for one, at in self._noted.items() if now - at < _APART}
        if len(self._noted) < _MOST:  # else the next request with it tries again
            self._noted[token_id] = now
            self._waiting[token_id] = digest

    async def write(self) -> None:
        """Write what was noted. While the database is away, it waits here."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        try:
            await (await self._store()).note_token_uses(waiting)
        except BaseException:
            self._waiting = waiting | self._waiting
            raise

    async def end(self) -> None:
        """Write the rest, if that is quick."""
        with suppress(PostbusError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self.write()

    async def run(self, stop: asyncio.Event) -> None:
        """Write every few seconds, until `stop` is set."""
        await repeat(self.write, name="token-uses", every=_EVERY, stop=stop)
