"""Long polls: they wait for messages for as long as their callers do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from litestar import Request

from postbus.bus import Bus
from postbus.errors import LeaseLost
from postbus.pull import Delivery, Pop, Popped

_MOST_NOTED = 100_000


class Polls:
    """The pops that wait, and the leases that pops have brought."""

    def __init__(self) -> None:
        self._watching: set[asyncio.Task[None]] = set()
        self._noted: dict[UUID, tuple[str, str | None, bool]] = {}
        """Of each lease the topic, the group, and whether others wait until it is settled: those of its key."""

    async def wait(self, request: Request[Any, Any, Any], popping: Pop) -> Sequence[Delivery]:
        """Pop, unless the caller leaves or the server ends. What comes for one who has left is given back."""
        taking = asyncio.create_task(_take(popping), name="postbus-poll")
        watching = asyncio.create_task(_until_gone(request), name="postbus-poll-watch")
        self._watching.add(watching)
        try:
            await asyncio.wait((taking, watching), return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                taking.cancel()
                with suppress(asyncio.CancelledError):
                    await taking
                return ()
            popped = taking.result()
            if popped and watching.done() and not watching.cancelled():
                with suppress(LeaseLost):
                    await popped.release()
                return ()
            return popped
        finally:
            self._watching.discard(watching)
            watching.cancel()
            taking.cancel()  # which goes on only if we are cancelled

    def end(self) -> None:
        """Let all who wait go, with nothing."""
        for watching in self._watching:
            watching.cancel()

    def note(self, delivery: Delivery, group: str | None) -> None:
        """Remember whom the settlement of a message concerns."""
        if delivery.token is not None and delivery.token not in self._noted:
            if len(self._noted) >= _MOST_NOTED:  # then those who wait find out by polling
                self._noted.pop(next(iter(self._noted)))
            has_followers = delivery.message.key is not None
            self._noted[delivery.token] = delivery.message.topic, group, has_followers

    async def owners(self, bus: Bus, tokens: Iterable[UUID]) -> set[tuple[str, str | None]]:
        """The topics and groups that leases are of. Nothing is said of one that is over, unless it is known here."""
        wanted = set(tokens)
        known = {self._noted[token][:2] for token in wanted if token in self._noted}
        if unknown := wanted - self._noted.keys():
            known |= await (await bus.connect()).lease_owners(list(unknown))
        return known

    def go_on(self, bus: Bus, tokens: Iterable[UUID], *, gives_back: bool = False) -> None:
        """Something of these leases was settled: others may have waited for that."""
        for token in tokens:
            topic, _, has_followers = self._noted.get(token, ("", None, False))
            if topic and (has_followers or gives_back):
                bus.ring(topic)


async def _take(popping: Pop) -> Popped:
    return await popping


async def _until_gone(request: Request[Any, Any, Any]) -> None:
    """Until the caller has left: nothing else can come after the body."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
