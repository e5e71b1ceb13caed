"""Who calls, and what they may do."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

import msgspec

from postbus._http_admin import TOKEN_PREFIX, token_parts
from postbus._store import Store
from postbus.errors import NotAllowed, NotAuthenticated

ROLES = ("producer", "consumer", "observer", "admin")
_REMEMBERED = 5.0  # seconds that a token goes on to work after it was revoked
_MOST_REMEMBERED = 10_000


class Caller(msgspec.Struct, frozen=True):
    """Somebody who calls the server."""

    name: str
    """What its limits are counted by."""
    roles: frozenset[str]
    topics: tuple[str, ...]
    """Patterns: * stands for any text."""

    def check_role(self, roles: Collection[str]) -> None:
        """Refuse a caller that has none of these roles. An admin may look at all that an observer sees."""
        if not self.has_role(roles):
            raise NotAllowed(
                f"this takes the role {' or '.join(roles)}, and you have {', '.join(sorted(self.roles)) or 'none'}",
                remedy="use another token: postbus tokens create NAME --role ROLE",
            )

    def has_role(self, roles: Collection[str]) -> bool:
        return not self.roles.isdisjoint(roles) or ("observer" in roles and "admin" in self.roles)

    def sees(self, topic: str | None) -> bool:
        """Whether a topic is one of the caller's."""
        return any(matches(pattern, topic or "") for pattern in self.topics)

    def check_topic(self, topic: str) -> None:
        if not self.sees(topic):
            raise NotAllowed(
                f"your topics are {', '.join(self.topics)}, and {topic!r} is none of them",
                remedy="use a token for this topic: postbus tokens create NAME --role ROLE --topic TOPIC",
            )


EVERYBODY = Caller("everybody", frozenset(ROLES), ("*",))
"""Who calls a server that asks nobody."""


def matches(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern, in which * stands for any text."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    place, end = len(first), len(name) - len(last)
    for part in middle:
        place = name.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True


class Verifier(Protocol):
    """Knows callers by what somebody else has signed for them."""

    async def caller(self, token: str) -> Caller: ...


class Authenticator:
    """Tells callers by their tokens."""

    def __init__(self, store: Callable[[], Awaitable[Store]], *, is_open: bool, verifier: Verifier | None) -> None:
        self._store = store
        self._is_open = is_open
        self._verifier = verifier
        self._known: dict[tuple[str, bytes], tuple[float, Caller]] = {}

    async def caller(self, authorization: str | None) -> Caller:
        """Who sends this header. Refuses strangers."""
        if self._is_open:
            return EVERYBODY
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise NotAuthenticated("the request has no token", remedy="send the header Authorization: Bearer TOKEN")
        token = token.strip()
        if self._verifier is not None and not token.startswith(f"{TOKEN_PREFIX}_"):
            return await self._verifier.caller(token)
        parts = token_parts(token)
        if parts is None:
            raise _unknown()
        until, caller = self._known.get(parts, (0.0, EVERYBODY))
        return caller if time.monotonic() < until else await self._look_up(parts)

    async def _look_up(self, parts: tuple[str, bytes]) -> Caller:
        self._known.pop(parts, None)
        row = await (await self._store()).check_token(*parts)
        if row is None:
            raise _unknown()
        caller = Caller(parts[0], frozenset(row["roles"]), tuple(row["topics"]))
        remaining = _REMEMBERED if row["remaining"] is None else min(_REMEMBERED, row["remaining"].total_seconds())
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[parts] = time.monotonic() + remaining, caller
        return caller


def _unknown() -> NotAuthenticated:
    return NotAuthenticated(
        "the token is unknown, revoked or expired", remedy="make one: postbus tokens create NAME --role ROLE"
    )
