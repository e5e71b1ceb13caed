"""Sinks, to which relays send messages. A class that implements the protocol is a sink."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import ModuleType
from typing import Protocol, runtime_checkable

import msgspec

from postbus._db.addresses import ENCODE, address_problem
from postbus.errors import InvalidOption
from postbus.message import Message, Outcome, Release, Retry


class NotNow(Release, frozen=True):
    """The sink accepts nothing at the moment, as with a full disk. No message is to blame."""

    error: str = ""


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the form that is sent to a sink."""

    id: str
    """The id by which the sink recognises a message that is sent again: event id, route, and replay if there is one."""
    target: str
    """The target in the sink: a subject, a queue, a stream, a topic, an address."""
    source: str
    """The source attribute of CloudEvents."""
    key: str | None
    """Messages with the same key keep their order."""
    body: bytes
    content_type: str
    headers: Mapping[str, str]
    """The message's own headers, and event_id, event_type, … or the attributes of CloudEvents."""
    message: Message
    """The message as it was published."""

    @property
    def event_id(self) -> str:
        """The identity of the message: see `Message.event_id`."""
        return self.message.event_id


@runtime_checkable
class Sink(Protocol):
    """A broker, or any other receiver of messages.

    The relay calls `open` before the first `send`, and again after the sink was away. While it is away, both raise
    SinkUnavailable, and the relay waits without counting attempts. Calls of `send` may overlap, but never with messages
    of the same key. A call has two messages of a key only if the sink has `keeps_order`: then they are in their order,
    and if one is not accepted, the sink must not accept those behind it either.
    """

    keeps_order: bool

    async def open(self) -> None:
        """Connect. Raises SinkUnavailable, or InvalidOption if connecting can never succeed."""

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        """Send messages. Returns an outcome for each.

        Ack means that the sink has acknowledged the message, Release that the message may not have reached it. Retry is
        for messages that the sink refused for now, DeadLetter for those that it will always refuse. NotNow means that
        the sink accepts nothing at the moment: the relay waits for as long as that lasts. A message that is released
        twice in a row may have made the sink go away, and is charged an attempt.
        """

    async def close(self) -> None:
        """Disconnect. It may be called on a sink that was never opened."""


async def one_by_one(send: Callable[[Parcel], Awaitable[Outcome]], parcels: Sequence[Parcel]) -> list[Outcome]:
    """Send each message alone, and none behind one of its key that was not accepted."""
    outcomes: list[Outcome] = []
    held_up: set[str | None] = set()
    for one in parcels:
        outcome = Release() if one.key in held_up else await send(one)
        outcomes.append(outcome)
        if isinstance(outcome, Retry | Release) and one.key is not None:
            held_up.add(one.key)
    return outcomes


def check_address(url: str, *schemes: str, of: str, example: str) -> None:
    """Refuse an address of a sink that cannot be read, without quoting it: it may contain a password."""
    problem = address_problem(url, schemes)
    if problem is not None:
        raise InvalidOption(f"the address of {of} is wrong: {problem}", remedy=f"give one such as {example}; {ENCODE}")


def client(name: str, extra: str) -> ModuleType:
    """Import the module of a sink's client when the sink is made: programs without that sink need not have it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise InvalidOption(f"{error.name} is not installed", remedy=f"pip install 'postbus[{extra}]'") from error
