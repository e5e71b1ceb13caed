"""The state that all requests share, and that of each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from litestar import Request

from postbus._db.actor import shown_actor
from postbus._db.store import Store
from postbus.admin import Admin
from postbus.bus import Bus
from postbus.errors import NotAllowed
from postbus.server.callers import Authenticator, Caller
from postbus.server.long_polls import LongPolls
from postbus.server.quotas import Quotas
from postbus.server.readiness import Readiness
from postbus.server.settings import ServerSettings
from postbus.server.token_watch import TokenWatch
from postbus.server.withheld import without_payloads

A = TypeVar("A")


async def _nothing() -> None:
    pass


@dataclass
class ServerContext:
    """The state that the requests of one server share."""

    bus: Bus
    settings: ServerSettings
    authenticator: Authenticator
    quotas: Quotas
    token_watch: TokenWatch
    readiness: Readiness
    polls: LongPolls = field(default_factory=LongPolls)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is to end. Requests that wait then end."""
    webhooks_changed: Callable[[], Awaitable[None]] = _nothing


@dataclass(frozen=True)
class Call:
    """A request whose caller is known."""

    server: ServerContext
    caller: Caller
    authorization: str | None = None
    address: str = ""

    async def check_again(self) -> None:
        """Refuse a caller whose token no longer works."""
        await self.server.authenticator.caller(self.authorization, self.address)

    async def check_leases(self, tokens: Iterable[UUID]) -> None:
        """Refuse leases of topics and groups that the caller lacks.

        A lease that has ended passes: its settlement reports it as lost.
        """
        caller = self.caller
        if caller.has_all_topics and caller.has_all_groups:
            return
        for topic, group in await self.server.polls.owners(self.bus, tokens):
            if not caller.sees(topic) or (group is None and not caller.has_all_groups) or not caller.sees_group(group):
                raise NotAllowed(
                    "the token lacks the topic or the group of this lease",
                    remedy="settle messages with the token that popped them, or with one for their topic and group",
                )

    def shown(self, answer: A) -> A:
        """An answer as the caller may see it."""
        return answer if self.caller.sees_payloads else without_payloads(answer)

    @property
    def bus(self) -> Bus:
        return self.server.bus

    @property
    def admin(self) -> Admin:
        """The admin whose actions the audit log shows under the caller's name."""
        return self.server.bus.admin.acting_as(shown_actor(self.caller.actor))

    async def store(self) -> Store:
        """The store whose actions the audit log shows under the caller's name."""
        return (await self.server.bus.connect()).acting_as(shown_actor(self.caller.actor))


def call_of(request: Request[Any, Any, Any]) -> Call:
    """The call that `let_in` has accepted."""
    call: Call = request.state.call
    return call
