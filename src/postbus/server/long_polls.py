"""Long polls: pops that wait for messages until their callers disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from litestar import Request

from postbus.bus import Bus
from postbus.errors import InvalidInput, LeaseLost
from postbus.pull import Delivery, Pop, Popped

if TYPE_CHECKING:
    from postbus.server.context import Call

_MOST_NOTED = 100_000


class LongPolls:
    """The waiting pops, and the leases of earlier ones."""

    def __init__(self) -> None:
        self._watching: set[asyncio.Task[None]] = set()
        self._noted: dict[UUID, tuple[str, str | None, bool]] = {}
        """The topic and the group of each lease, and whether messages of its key wait for its settlement."""

    async def wait(self, request: Request[Any, Any, Any], popping: Pop, call: Call) -> Sequence[Delivery]:
        """Pop, unless the caller disconnects, loses its rights, or the server ends.

        Messages that arrive then are given back.
        """
        taking = asyncio.create_task(_take(popping), name="postbus-poll")
        watching = asyncio.create_task(_until_gone(request), name="postbus-poll-watch")
        self._watching.add(watching)
        try:
            with call.server.token_watch.watching(call.authorization, watching.cancel):
                await asyncio.wait((taking, watching), return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                taking.cancel()
                with suppress(asyncio.CancelledError):
                    await taking
                await call.check_again()
                return ()
            popped = taking.result()
            has_left = watching.done() and not watching.cancelled()
            if popped:
                await _look_again(popped, call, has_left=has_left)
            return () if has_left else popped
        finally:
            self._watching.discard(watching)
            watching.cancel()
            taking.cancel()  # which goes on only if we are cancelled

    def end(self) -> None:
        """End all waiting pops. They return nothing."""
        for watching in self._watching:
            watching.cancel()

    def note(self, delivery: Delivery, group: str | None) -> None:
        """Remember the topic and the group of a delivery's lease."""
        if delivery.token is not None and delivery.token not in self._noted:
            if len(self._noted) >= _MOST_NOTED:  # consumers that wait for it find out by polling
                self._noted.pop(next(iter(self._noted)))
            has_followers = delivery.message.key is not None
            self._noted[delivery.token] = delivery.message.topic, group, has_followers

    async def owners(self, bus: Bus, tokens: Iterable[UUID]) -> set[tuple[str, str | None]]:
        """The topics and groups of leases. Ended leases are left out, unless they are noted here."""
        wanted = set(tokens)
        known = {self._noted[token][:2] for token in wanted if token in self._noted}
        if unknown := wanted - self._noted.keys():
            known |= await (await bus.connect()).lease_owners(list(unknown))
        return known

    def wake(self, bus: Bus, tokens: Iterable[UUID], *, gives_back: bool = False) -> None:
        """Wake consumers that may have waited for a settlement of these leases."""
        for token in tokens:
            topic, _, has_followers = self._noted.get(token, ("", None, False))
            if topic and (has_followers or gives_back):
                bus.notify(topic)


async def _look_again(popped: Popped, call: Call, *, has_left: bool) -> None:
    """Give back what was popped for a caller who has left, or whose token has stopped working while it waited."""
    try:
        await call.check_again()
    except BaseException:
        has_left = True
        raise
    finally:
        if has_left:
            with suppress(LeaseLost, InvalidInput):  # without authentication, auto_ack has settled them
                await popped.release()


async def _take(popping: Pop) -> Popped:
    return await popping


async def _until_gone(request: Request[Any, Any, Any]) -> None:
    """Wait until the caller disconnects. Nothing else can follow the body."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
