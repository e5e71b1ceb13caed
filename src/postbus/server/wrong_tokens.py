"""Wrong tokens: counted by address, and looked up together when an address sends many.

A valid token from the same address is not refused, since behind a proxy or NAT many callers have one address. It waits
up to a second if this server has not seen it before.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from postbus.errors import TooManyRequests
from postbus.server.quotas import RateLimiter

Parts = tuple[str, bytes]
"""The id of a token, and the hash of its secret."""
Row = dict[str, Any]
LookUp = Callable[[Sequence[Parts]], Awaitable[dict[Parts, Row]]]

_AT_ONCE = 20.0  # wrong tokens that an address may send at once, …
_RATE = 1.0  # … and per second
_EVERY = 1.0  # seconds between two statements for addresses that have sent more


class WrongTokens:
    """Counts wrong tokens by address."""

    def __init__(self) -> None:
        self._wrong = RateLimiter(_RATE, _AT_ONCE)

    def is_suspect(self, address: str) -> bool:
        """Whether an address has sent too many wrong tokens recently."""
        return self._wrong.wait_for(_network(address), time.monotonic()) > 0

    def note(self, address: str) -> None:
        """Count a wrong token."""
        self._wrong.take(_network(address), time.monotonic())

    def refusal(self, address: str) -> TooManyRequests:
        """The error for an address that continues with wrong tokens."""
        return TooManyRequests(
            "your address has sent too many wrong tokens",
            remedy="use a valid token: it is accepted from your address too",
            retry_after=self._wrong.wait_for(_network(address), time.monotonic()),
        )


def _network(address: str) -> str:
    """The part of an address that identifies a client: all of it, or with IPv6 the first 64 bits."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return address


class TokenLookups:
    """Looks up all tokens of a second by one statement."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._waiting: dict[Parts, asyncio.Future[Row | None]] = {}
        self._is_called = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, parts: Parts) -> Row | None:
        """Look a token up, within a second or so. None if the token is not valid."""
        found = self._waiting.get(parts)
        if found is None:
            found = self._waiting[parts] = asyncio.get_running_loop().create_future()
        if not self._is_called:
            self._is_called = True
            asking = asyncio.create_task(self._ask_soon(), name="postbus-tokens")
            self._tasks.add(asking)
            asking.add_done_callback(self._tasks.discard)
        return await asyncio.shield(found)

    async def _ask_soon(self) -> None:
        await asyncio.sleep(_EVERY)
        # Tokens that arrive while the database answers go into the next statement.
        waiting, self._waiting, self._is_called = self._waiting, {}, False
        try:
            rows = await self._look_up(list(waiting))
        except Exception as error:
            for one in waiting.values():
                one.set_exception(error)
                one.exception()  # the requests may have ended
        else:
            for parts, one in waiting.items():
                one.set_result(rows.get(parts))

    async def pause(self) -> None:
        """Delay the answer to a malformed token by as long as a lookup takes."""
        await asyncio.sleep(_EVERY)

    async def close(self) -> None:
        """Stop looking tokens up."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
