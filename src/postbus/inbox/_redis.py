"""The inbox in Redis, which claims a message for a short time and remembers it for a long one.

A claim expires, so a process that dies with one delays the effect but does not prevent it. Redis cannot commit the
effect and its record together: docs/inbox.md explains the consequences.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from postbus.errors import InvalidInput, InvalidOption, LeaseLost, MessageInHand
from postbus.inbox._idempotent import idempotent
from postbus.inbox._names import WINDOW, MessageId, as_text, as_window, checked_consumer
from postbus.options import Duration

H = TypeVar("H", bound=Callable[..., Any])

KEY = "postbus:inbox:{consumer}:{message_id}"
_NEW, _IN_HAND = 1, 2

# A value that is not a claim means that the message is done, whoever wrote it.
_CLAIM = """
if redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2]) then return {1, 0} end
if string.sub(redis.call('get', KEYS[1]), 1, 8) == 'claimed:' then return {2, redis.call('pttl', KEYS[1])} end
return {0, 0}
"""
# If nobody has claimed the message since our claim expired, our effect is still the only one, so it counts.
_FINISH = """
local holder = redis.call('get', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('set', KEYS[1], 'done', 'px', ARGV[2])
return 1
"""
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisInbox:
    """Remembers in Redis which messages a consumer has handled.

    `client` is one of redis-py, async or not. `claim` is the time that an effect may take: after it another process may
    begin. `window` is how long a handled message is remembered.
    """

    def __init__(
        self, client: Any, *, window: Duration = WINDOW, claim: Duration = timedelta(minutes=1), key: str = KEY
    ) -> None:
        if not hasattr(client, "eval"):
            raise InvalidInput(
                f"a {type(client).__module__}.{type(client).__qualname__} is not a client of Redis",
                remedy="give a redis.asyncio.Redis or a redis.Redis: pip install 'postbus[redis]'",
            )
        self._client = client
        self._is_async = any(one.__module__.startswith("redis.asyncio") for one in type(client).__mro__)
        least = timedelta(milliseconds=1)
        self._window = _milliseconds(as_window(window, name="window", least=least))
        self._claim = _milliseconds(as_window(claim, name="claim", least=least))
        self._key = _checked_key(key)

    def once(self, consumer: str, message_id: MessageId) -> RedisOnce:
        """Whether this consumer has the message for the first time, as `async with … as first:`.

        If so, the block must have the effect. The message is done when the block ends; an error that leaves the block
        gives the message back. Raises MessageInHand while another process has the message, and LeaseLost at the end if
        another process took it over. With a client that is not async: `with … as first:`.
        """
        return RedisOnce(self._call, self._key_of(consumer, message_id), self._is_async, self._claim, self._window)

    def forget(self, consumer: str, message_id: MessageId) -> Any:
        """Let the next delivery of a message have its effect again.

        Returns whether the message was known; with an async client, an awaitable of that.
        """
        deleted = self._client.delete(self._key_of(consumer, message_id))
        return _as_bool(deleted) if self._is_async else bool(deleted)

    def idempotent(self, consumer: str, *, message_id: Callable[[Any], MessageId] | None = None) -> Callable[[H], H]:
        """Make a handler idempotent: a message whose handler has succeeded is not handled again.

        A message that another process has in hand is tried again when the claim of that process ends. Transactional
        handlers are refused, because their effect would commit after the message is marked as done. Messages are known
        by their `event_id`, or by `message_id`, such as `lambda message: message.headers["payment-id"]`.
        """
        self._key_of(consumer, "any")

        def once(message: Any, conn: Any) -> RedisOnce:
            return self.once(consumer, message if message_id is None else message_id(message))

        return idempotent(once, in_database=False)

    def _key_of(self, consumer: str, message_id: MessageId) -> str:
        if ":" in checked_consumer(consumer):
            raise InvalidOption(
                f"bad name of a consumer: {consumer!r}", remedy="use no colon: it separates the parts of a key"
            )
        return self._key.format(consumer=consumer, message_id=as_text(message_id))

    def _call(self, script: str, *args: Any) -> Any:
        return self._client.eval(script, 1, *args)


class RedisOnce:
    """One message of one consumer, claimed in Redis."""

    def __init__(self, call: Callable[..., Any], key: str, is_async: bool, claim: int, window: int) -> None:
        self._call = call
        self._key = key
        self._is_async = is_async
        self._claim = claim
        self._window = window
        self._token = f"claimed:{secrets.token_hex(16)}"
        self._is_first = False

    def __enter__(self) -> bool:
        self._check_kind(is_async=False)
        return self._claimed(self._call(_CLAIM, self._key, self._token, self._claim))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._is_first:
            return
        if error is None:
            self._check_finished(self._call(_FINISH, self._key, self._token, self._window))
            return
        with suppress(Exception):  # then the claim expires by itself
            self._call(_RELEASE, self._key, self._token)

    async def __aenter__(self) -> bool:
        self._check_kind(is_async=True)
        return self._claimed(await self._call(_CLAIM, self._key, self._token, self._claim))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._is_first:
            return
        if error is None:
            self._check_finished(await self._call(_FINISH, self._key, self._token, self._window))
            return
        with suppress(Exception):  # as above
            await self._call(_RELEASE, self._key, self._token)

    def _claimed(self, answer: Any) -> bool:
        state, left = answer
        if state == _IN_HAND:
            raise MessageInHand(
                "another process has the message in hand",
                remedy="deliver it again when the claim of that process has ended",
                retry_after=max(left, 0) / 1000,
            )
        self._is_first = state == _NEW
        return self._is_first

    @staticmethod
    def _check_finished(is_finished: int) -> None:
        if not is_finished:
            raise LeaseLost(
                "the claim expired before the effect was complete, and another process took the message over",
                remedy="claim for longer than an effect takes: RedisInbox(…, claim=…)",
            )

    def _check_kind(self, *, is_async: bool) -> None:
        if self._is_async != is_async:
            raise InvalidInput(
                f"the client of Redis is {'async' if self._is_async else 'not async'}",
                remedy=f"use `{'async with' if self._is_async else 'with'} inbox.once(…) as first:`",
            )


async def _as_bool(deleted: Awaitable[Any]) -> bool:
    return bool(await deleted)


def _milliseconds(length: timedelta) -> int:
    return int(length / timedelta(milliseconds=1))


def _checked_key(key: str) -> str:
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(key) if name is not None}
    except (TypeError, ValueError):
        fields = set()
    if fields != {"consumer", "message_id"}:
        raise InvalidOption(f"bad key {key!r}", remedy=f"use {{consumer}} and {{message_id}}, as in {KEY!r}")
    return key
