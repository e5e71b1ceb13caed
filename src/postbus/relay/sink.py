"""Sinks: where a relay sends messages. The protocol is all that one has to keep to write another."""

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
    """The sink says that it takes nothing at the moment, as with a full disk. No message is to blame."""

    error: str = ""


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it leaves for a sink."""

    id: str
    """By which the sink recognises a message that is sent again: event id, route, and the replay if it is one."""
    target: str
    """Where in the sink it goes: a subject, a queue, a stream, a topic, an address."""
    source: str
    """Who sends, as CloudEvents have it."""
    key: str | None
    """What order is kept by."""
    body: bytes
    content_type: str
    headers: Mapping[str, str]
    """The message's own, and what is told of it: event_id, event_type, … or the attributes of CloudEvents."""
    message: Message
    """As it was published."""

    @property
    def event_id(self) -> str:
        """The identity of the message: see `Message.event_id`."""
        return self.message.event_id


@runtime_checkable
class Sink(Protocol):
    """A broker, or whatever else takes messages.

    `open` is called before the first `send`, and again after the sink was away; both raise SinkUnavailable while it
    is. A relay waits then, without counting attempts. Calls of `send` may overlap, but never with two messages of a
    key, unless the sink says `keeps_order`: then a call has them in their order, and what follows one that is not
    taken must not be taken either.
    """

    keeps_order: bool

    async def open(self) -> None:
        """Connect. Raises SinkUnavailable, or InvalidOption if it never will."""

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        """Send; an outcome for each. Ack only what the sink has acknowledged, and Release what may not have reached it.

        Retry is for what it refused for now, DeadLetter for what it will always refuse. Return NotNow if the sink says
        that it takes nothing at the moment: the relay waits for as long as that lasts. A message that comes back with
        Release twice in a row may have driven the sink away, and is charged an attempt.
        """

    async def close(self) -> None:
        """Disconnect; also when it was never opened."""


async def one_by_one(send: Callable[[Parcel], Awaitable[Outcome]], parcels: Sequence[Parcel]) -> list[Outcome]:
    """Send each alone, and of a key nothing behind one that was not taken."""
    outcomes: list[Outcome] = []
    held_up: set[str | None] = set()
    for one in parcels:
        outcome = Release() if one.key in held_up else await send(one)
        outcomes.append(outcome)
        if isinstance(outcome, Retry | Release) and one.key is not None:
            held_up.add(one.key)
    return outcomes


def check_address(url: str, *schemes: str, of: str, example: str) -> None:
    """Refuse an address of a sink that cannot be read, without a word of what it says: it may hold a password."""
    problem = address_problem(url, schemes)
    if problem is not None:
        raise InvalidOption(f"the address of {of} is wrong: {problem}", remedy=f"such as {example}; {ENCODE}")


def client(name: str, extra: str) -> ModuleType:
    """The module of a sink's client, imported when the sink is made: others need not have it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise InvalidOption(f"{error.name} is not installed", remedy=f"pip install 'postbus[{extra}]'") from error
