"""Ends polls and streams whose token was revoked or has expired."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from postbus._runtime.loop import repeat
from postbus.server.callers import Authenticator

_EVERY = 2.0  # seconds between two checks: docs promise five


class TokenWatch:
    """Checks the tokens of all polls and streams again, by one statement."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._waiting: defaultdict[str, set[Callable[[], object]]] = defaultdict(set)
        """For each authorization header, the functions that end its polls and streams."""

    @contextmanager
    def watching(self, authorization: str | None, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` if the header stops working within the block."""
        if authorization is None:
            yield
            return
        self._waiting[authorization].add(end)
        try:
            yield
        finally:
            self._waiting[authorization].discard(end)
            if not self._waiting[authorization]:
                del self._waiting[authorization]

    async def run(self, stop: asyncio.Event) -> None:
        """Check until `stop` is set."""
        await repeat(self.tick, name="token-watch", every=_EVERY, stop=stop)

    async def tick(self) -> None:
        """Check once."""
        if self._waiting:
            for authorization in await self._authenticator.refused(list(self._waiting)):
                for end in list(self._waiting.get(authorization, ())):
                    end()
