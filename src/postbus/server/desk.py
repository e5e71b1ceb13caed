"""What all requests share, and what each of them has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from litestar import Request

from postbus.admin import Admin
from postbus.bus import Bus
from postbus.server.callers import Authenticator, Caller
from postbus.server.limits import Gate
from postbus.server.polls import Polls
from postbus.server.settings import Settings


async def _nothing() -> None:
    pass


@dataclass
class Desk:
    """What the requests of one server share."""

    bus: Bus
    settings: Settings
    authenticator: Authenticator
    gate: Gate
    polls: Polls = field(default_factory=Polls)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is told to end: nobody goes on waiting."""
    webhooks_changed: Callable[[], Awaitable[None]] = _nothing


@dataclass(frozen=True)
class Call:
    """A request, once it is known who sends it."""

    desk: Desk
    caller: Caller
    authorization: str | None = None

    async def check_again(self) -> None:
        """Refuse a caller whose token does not work any more."""
        await self.desk.authenticator.caller(self.authorization)

    @property
    def bus(self) -> Bus:
        return self.desk.bus

    @property
    def admin(self) -> Admin:
        return self.desk.bus.admin


def call_of(request: Request[Any, Any, Any]) -> Call:
    """The call that the guard has let in."""
    call: Call = request.state.call
    return call
