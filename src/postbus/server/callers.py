"""Callers, and their rights."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

import msgspec

from postbus._admin.access import TOKEN_PREFIX, token_parts
from postbus._db.store import Store
from postbus.errors import NotAllowed, NotAuthenticated
from postbus.server.rights import ROLES, Right, held_by
from postbus.server.token_uses import TokenUses
from postbus.server.wrong_tokens import Parts, Row, TokenLookups, WrongTokens

_REMEMBERED = 5.0  # seconds for which a revoked token still works
_MOST_REMEMBERED = 10_000


class Caller(msgspec.Struct, frozen=True):
    """A caller of the server."""

    name: str
    """The name under which its requests are counted."""
    roles: frozenset[str]
    """The roles that it was given. `held_by` adds those that they include."""
    topics: tuple[str, ...]
    """Patterns, in which * stands for any text."""
    groups: tuple[str, ...]
    """Patterns as well."""
    actor: str
    """The name that the audit log shows."""
    sees_payloads: bool
    """Whether it may see what publishers and handlers wrote: payloads, headers, keys, errors."""

    def check(self, right: Right) -> None:
        """Refuse a caller that lacks a role for a route, or whose limits exclude it altogether."""
        self.check_role(right.roles)
        if right.all_topics:
            self.check_all_topics()
        if right.all_groups:
            self.check_all_groups()

    def check_role(self, roles: Collection[str]) -> None:
        """Refuse a caller that has none of these roles."""
        if self.has_role(roles):
            return
        needed = " or ".join(roles)
        if not self.roles.isdisjoint(roles):
            raise NotAllowed(
                f"a token without payloads cannot use the role {needed}, which shows them",
                remedy="use a token with payloads",
            )
        raise NotAllowed(
            f"the token lacks the role {needed}: it has {', '.join(sorted(self.roles)) or 'none'}",
            remedy=f"use another token: postbus tokens create NAME --role {next(iter(roles))}",
        )

    def has_role(self, roles: Collection[str]) -> bool:
        return not held_by(self.roles, sees_payloads=self.sees_payloads).isdisjoint(roles)

    def sees(self, topic: str | None) -> bool:
        """Whether a topic is one of the caller's."""
        return any(matches(pattern, topic or "") for pattern in self.topics)

    def check_topic(self, topic: str) -> None:
        if not self.sees(topic):
            raise NotAllowed(
                f"the token lacks the topic {topic!r}: its topics are {', '.join(self.topics) or 'none'}",
                remedy="use a token for this topic: postbus tokens create NAME --role ROLE --topic TOPIC",
            )

    @property
    def has_all_topics(self) -> bool:
        return "*" in self.topics

    def check_all_topics(self) -> None:
        if not self.has_all_topics:
            raise NotAllowed(
                f"the request may affect any topic, and the token's topics are {', '.join(self.topics) or 'none'}",
                remedy="name one topic in each request, or use a token for all topics",
            )

    @property
    def has_all_groups(self) -> bool:
        return "*" in self.groups

    def sees_group(self, group: str | None) -> bool:
        """Whether a group is one of the caller's. A QUEUE has no group, so only its topic counts."""
        return group is None or any(matches(pattern, group) for pattern in self.groups)

    def check_group(self, group: str | None) -> None:
        """Refuse a group that is not the caller's. Without a group, refuse a caller that is limited to some."""
        if group is None:
            self.check_all_groups()
        elif not self.sees_group(group):
            raise NotAllowed(
                f"the token lacks the group {group!r}: its groups are {', '.join(self.groups) or 'none'}",
                remedy="use a token for this group: postbus tokens create NAME --role ROLE --group GROUP",
            )

    def check_all_groups(self) -> None:
        if not self.has_all_groups:
            raise NotAllowed(
                f"the request is not for one group, and the token's groups are {', '.join(self.groups) or 'none'}",
                remedy="name one of these groups, or use a token for all groups",
            )


EVERYBODY = Caller("everybody", frozenset(ROLES), ("*",), ("*",), "http:everybody", sees_payloads=True)
"""The caller of a server without authentication."""


def matches(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern, in which * stands for any text."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    begin, end = len(first), len(name) - len(last)
    for part in middle:
        begin = name.find(part, begin, end)
        if begin < 0:
            return False
        begin += len(part)
    return True


class Verifier(Protocol):
    """Finds the caller of a token that somebody else has signed."""

    async def caller(self, token: str) -> Caller: ...


class Authenticator:
    """Finds the caller that a token belongs to."""

    def __init__(self, store: Callable[[], Awaitable[Store]], *, is_open: bool, verifier: Verifier | None) -> None:
        self._store = store
        self._is_open = is_open
        self._verifier = verifier
        self._known: dict[Parts, tuple[float, Caller]] = {}
        self._wrong_tokens = WrongTokens()
        self._lookups = TokenLookups(self._rows)
        self.uses = TokenUses(store)

    async def caller(self, authorization: str | None, address: str = "") -> Caller:
        """Return the caller who sends this header from an address. Refuses strangers."""
        if self._is_open:
            return EVERYBODY
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise NotAuthenticated("the request has no token", remedy="send the header Authorization: Bearer TOKEN")
        token = token.strip()
        parts = token_parts(token)
        until, caller = self._known.get(parts, (None, EVERYBODY)) if parts is not None else (None, EVERYBODY)
        if until is not None and time.monotonic() < until:
            return caller
        is_suspect = self._wrong_tokens.is_suspect(address)
        try:
            # A token that was valid a while ago does not wait because others at its address send wrong ones.
            return await self._find(token, parts, is_suspect=is_suspect and until is None)
        except NotAuthenticated:
            self._wrong_tokens.note(address)
            if is_suspect:
                raise self._wrong_tokens.refusal(address) from None
            raise

    async def _find(self, token: str, parts: Parts | None, *, is_suspect: bool) -> Caller:
        """Find the caller of a token. Wrong tokens from a suspect address are answered late."""
        if parts is not None:
            row = await self._lookups.ask(parts) if is_suspect else (await self._rows([parts])).get(parts)
            return self._remember(parts, row)
        try:
            if self._verifier is None or token.startswith(f"{TOKEN_PREFIX}_"):
                raise _unknown()
            return await self._verifier.caller(token)
        except NotAuthenticated:
            if is_suspect:
                await self._lookups.pause()
            raise

    async def refused(self, authorizations: Collection[str]) -> set[str]:
        """The headers that no longer work. One statement checks all tokens."""
        tokens = {one: one.partition(" ")[2].strip() for one in authorizations}
        parts_of = {one: token_parts(token) for one, token in tokens.items()}
        known = [parts for parts in parts_of.values() if parts is not None]
        rows = await self._rows(known) if known else {}
        refused = set()
        for one, parts in parts_of.items():
            try:
                if parts is None:
                    await self._find(tokens[one], None, is_suspect=False)
                else:
                    self._remember(parts, rows.get(parts))
            except NotAuthenticated:
                refused.add(one)
        return refused

    async def close(self) -> None:
        """Stop looking tokens up."""
        await self._lookups.close()

    async def _rows(self, tokens: Sequence[Parts]) -> dict[Parts, Row]:
        return await (await self._store()).check_tokens(tokens)

    def _remember(self, parts: Parts, row: Row | None) -> Caller:
        """Remember the caller that a row describes. Refuses a token without a row."""
        if row is None:
            self._known.pop(parts, None)
            raise _unknown()
        caller = Caller(
            parts[0],
            frozenset(row["roles"]),
            tuple(row["topics"]),
            tuple(row["groups"]),
            f"token:{parts[0]} {row['name']}",
            sees_payloads=row["payloads"],
        )
        self.uses.note(*parts)
        remaining = _REMEMBERED if row["remaining"] is None else min(_REMEMBERED, row["remaining"].total_seconds())
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[parts] = time.monotonic() + remaining, caller
        return caller


def _unknown() -> NotAuthenticated:
    return NotAuthenticated(
        "the token is unknown, revoked or expired", remedy="make one: postbus tokens create NAME --role ROLE"
    )
