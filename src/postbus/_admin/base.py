"""The base of all operators' methods: the store, the caller's name in the audit log, and looking up a topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, Self

from postbus._db.actor import checked_actor
from postbus._db.store import Store
from postbus.errors import TopicNotFound, WrongSemantics
from postbus.options import Semantics
from postbus.results.topics import TopicInfo
from postbus.start import Default


class Halt(Protocol):
    """Lets handlers of this process begin with no more messages of a topic, or for a group of it."""

    async def __call__(self, topic: str, group: str | None = None) -> None: ...


class AdminBase:
    """Operators' methods that the parts of `bus.admin` share."""

    def __init__(self, store: Callable[[], Awaitable[Store]], default: Default, halt: Halt) -> None:
        self._store = store
        self._default = default
        self._halt = halt

    def acting_as(self, actor: str) -> Self:
        """The same for somebody else: the audit log shows `actor` beside the database user. For servers of your own."""
        known = checked_actor(actor)

        async def store() -> Store:
            return (await self._store()).acting_as(known)

        return type(self)(store, self._default, self._halt)

    async def topic(self, name: str) -> TopicInfo:
        """One topic, with options and what it holds."""
        found = await (await self._store()).topics(name)
        if not found:
            raise _no_topic(name)
        return found[0]

    async def semantics(self, topic: str) -> Semantics:
        """QUEUE or PUB_SUB, at once, however much a topic holds."""
        found = await (await self._store()).semantics(topic)
        if not found:
            raise _no_topic(topic)
        return found[topic]


def _no_topic(name: str) -> TopicNotFound:
    remedy = f"see postbus topics list, or create it: postbus topics create {name}"
    return TopicNotFound(f"there is no topic {name!r}", remedy=remedy)


def not_a_log(topic: str) -> WrongSemantics:
    """The error for a group of a QUEUE."""
    return WrongSemantics(
        f"topic {topic!r} is a QUEUE, and has no groups",
        remedy=f"make it PUB_SUB: postbus topics migrate {topic} --to PUB_SUB --group GROUP",
    )
