"""Following a topic by server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec

from postbus._admin.tail import SortKey, TopicTail
from postbus._runtime.loop import pause
from postbus.errors import DatabaseUnavailable, NotServed
from postbus.server.context import Call
from postbus.server.views.messages import BrowsedMessage, message_view

_EVERY = 0.25  # seconds between two looks
_AWAY = 2.0  # seconds between two looks while the database is away
_WHO = 1.0  # seconds after which the caller's token is checked again before an event
_SIGN_OF_LIFE = 15.0  # seconds without events after which a comment is sent, to notice a dead connection


async def follow(call: Call, topic: str, last_event_id: str | None) -> AsyncIterator[bytes]:
    """Each new message as an event.

    All messages up to an event's id were sent, so a client that goes on from it misses nothing; messages from the last
    seconds before the break may be sent again.
    """
    refused = asyncio.Event()
    with (
        call.server.quotas.polling(call.caller.name),
        call.server.token_watch.watching(call.authorization, refused.set),
    ):
        tail = TopicTail(call.bus.connect, topic, is_log=await call.admin.semantics(topic) == "PUB_SUB")
        if last_event_id is None:
            async for _ in tail.newest(0):
                pass
        else:
            tail.go_on_after(_sort_key(last_event_id))
        yield b": following\n\n"
        said = asked = time.monotonic()
        while not call.server.stopping.is_set() and not refused.is_set():
            wait = _EVERY
            try:
                async for one in tail.new_messages():
                    if time.monotonic() - asked > _WHO:
                        await call.check_again()
                        asked = time.monotonic()
                    yield _event(tail.found_up_to, call.shown(message_view(BrowsedMessage, one)))
                    said = time.monotonic()
                    if refused.is_set():
                        return
            except DatabaseUnavailable:
                wait = _AWAY
            except NotServed:
                return
            if time.monotonic() - said > _SIGN_OF_LIFE:
                yield b":\n\n"
                said = time.monotonic()
            await pause(wait, call.server.stopping, refused)


def _event(found_up_to: SortKey, message: BrowsedMessage) -> bytes:
    # A payload is sent as it was pushed, so it may have several lines.
    data = msgspec.json.encode(message).replace(b"\r", b" ").replace(b"\n", b"\ndata: ")
    return b"id: %d.%d\nevent: message\ndata: %b\n\n" % (found_up_to[0], max(found_up_to[1], 0), data)


def _sort_key(event_id: str) -> SortKey:
    position, _, index = event_id.partition(".")
    return int(position), int(index)
