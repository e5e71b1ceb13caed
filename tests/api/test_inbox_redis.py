"""The inbox in Redis: claimed, done, released on failure, taken over from dead processes."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from typing import Any

import pytest
import redis

from postbus import InvalidInput, InvalidOption, LeaseLost, MessageInHand
from postbus.inbox import RedisInbox
from support.eventually import eventually

pytest_plugins = ["support.fix_redis"]

_KEY = "postbus:inbox:c:m"


async def first(inbox: RedisInbox, message_id: Any = "m", consumer: str = "c") -> bool:
    async with inbox.once(consumer, message_id) as is_first:
        return is_first


async def test_redis_message_has_its_effect_once(redis_client: Any) -> None:
    """It is known for a month by default, and new to another consumer."""
    inbox = RedisInbox(redis_client)

    assert [await first(inbox), await first(inbox), await first(inbox, consumer="d")] == [True, False, True]
    assert 719 * 3600 < await redis_client.ttl(_KEY) <= 720 * 3600


async def test_claim_is_short_and_done_is_long(redis_client: Any) -> None:
    """During the effect the record expires soon; afterwards it stays for the window."""
    inbox = RedisInbox(redis_client, claim="5s", window="2h")
    async with inbox.once("c", "m"):
        assert 0 < await redis_client.pttl(_KEY) <= 5000

    assert 7100 < await redis_client.ttl(_KEY) <= 7200


async def test_message_in_hand_is_neither_new_nor_done(redis_client: Any) -> None:
    """A copy is refused with the time to retry, and must not be acknowledged before the first is done."""
    inbox = RedisInbox(redis_client, claim="30s")
    async with inbox.once("c", "m"):
        with pytest.raises(MessageInHand) as busy:
            await first(inbox)
        assert 29 < busy.value.retry_after <= 30

    assert not await first(inbox)


async def test_failure_releases_the_message(redis_client: Any) -> None:
    """The next delivery has the effect at once."""
    inbox = RedisInbox(redis_client)
    with pytest.raises(ZeroDivisionError):
        async with inbox.once("c", "m"):
            raise ZeroDivisionError

    assert await first(inbox)


async def test_cancelled_effect_releases_the_message(redis_client: Any) -> None:
    """Cancelling the task that holds the message counts as a failure."""
    inbox = RedisInbox(redis_client)
    has_begun = asyncio.Event()

    async def work() -> None:
        async with inbox.once("c", "m"):
            has_begun.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await has_begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert await first(inbox)


async def gone(client: Any, key: str = _KEY) -> None:
    async def is_gone() -> None:
        assert not await client.exists(key)

    await eventually(is_gone)


async def test_stalled_consumer_cannot_finish_for_the_next_one(redis_client: Any) -> None:
    """The stalled one gets LeaseLost and changes nothing of the next one's record."""
    slow, quick = RedisInbox(redis_client, claim="50ms"), RedisInbox(redis_client, claim="30s")
    for error in (None, ZeroDivisionError()):
        late = slow.once("c", "m")
        assert await late.__aenter__()
        await gone(redis_client)
        async with quick.once("c", "m") as is_first:
            assert is_first
            held = await redis_client.get(_KEY)
            if error is None:
                with pytest.raises(LeaseLost, match="another process took the message over"):
                    await late.__aexit__(None, None, None)
            else:
                await late.__aexit__(type(error), error, None)
            assert await redis_client.get(_KEY) == held
        assert not await first(quick)
        await quick.forget("c", "m")


async def test_late_effect_counts_if_nobody_else_has_begun(redis_client: Any) -> None:
    """Its claim has expired, but it is still the only one."""
    inbox = RedisInbox(redis_client, claim="20ms")
    async with inbox.once("c", "m"):
        await gone(redis_client)

    assert not await first(inbox)


async def test_redis_message_is_forgotten_on_request(redis_client: Any) -> None:
    """Its next delivery has its effect again."""
    inbox = RedisInbox(redis_client)
    assert await first(inbox)

    assert [await inbox.forget("c", "m"), await inbox.forget("c", "m")] == [True, False]
    assert await first(inbox)


async def test_keys_of_another_program_count_as_done(redis_client: Any) -> None:
    """A record under an older program's key counts, whatever its value."""
    inbox = RedisInbox(redis_client, key="pf:evt:processed:{consumer}:{message_id}")
    await redis_client.set("pf:evt:processed:compliance:e-1", "1", nx=True, ex=100)

    assert not await first(inbox, "e-1", "compliance")
    assert await first(inbox, "e-2", "compliance")
    assert await redis_client.get("pf:evt:processed:compliance:e-2") == b"done"


async def test_sync_client_works_with_plain_with(redis_url: str) -> None:
    """The blocks behave as with an async client."""

    def work() -> list[Any]:
        with redis.Redis.from_url(redis_url) as client:
            inbox = RedisInbox(client)
            seen: list[Any] = []
            for _ in range(2):
                with inbox.once("c", "m") as is_first:
                    seen.append(is_first)
            seen.append(inbox.forget("c", "m"))
            with pytest.raises(ZeroDivisionError), inbox.once("c", "m"):
                raise ZeroDivisionError
            with inbox.once("c", "m") as is_first:
                seen.append(is_first)
                with pytest.raises(MessageInHand), inbox.once("c", "m"):
                    pass
            return seen

    assert await asyncio.to_thread(work) == [True, False, True, True]


async def test_wrong_kind_of_redis_block_is_refused(redis_client: Any, redis_url: str) -> None:
    """The error says which one to use instead."""
    with pytest.raises(InvalidInput, match="use `async with"), RedisInbox(redis_client).once("c", "m"):
        pass
    with redis.Redis.from_url(redis_url) as client, pytest.raises(InvalidInput, match="use `with"):
        async with RedisInbox(client).once("c", "m"):
            pass


_CONSUMER = """
import asyncio, sys
import redis.asyncio
from postbus.inbox import RedisInbox

async def main(url, is_stuck):
    async with redis.asyncio.from_url(url) as client:
        async with RedisInbox(client, claim="500ms").once("c", "m") as is_first:
            print("claimed", flush=True)
            if is_stuck:
                await asyncio.Event().wait()
            if is_first:
                await client.incr("effects")

asyncio.run(main(sys.argv[1], sys.argv[2] == "stuck"))
"""


async def consumer(url: str, how: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CONSUMER, url, how, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def test_crash_between_claim_and_effect_delays_the_effect(redis_url: str, redis_client: Any) -> None:
    """Redeliveries are refused while the killed process's claim lasts, and then one succeeds."""
    doomed = await consumer(redis_url, "stuck")
    assert doomed.stdout is not None
    assert await doomed.stdout.readline() == b"claimed\n"
    doomed.send_signal(signal.SIGKILL)
    await doomed.wait()
    inbox, refusals = RedisInbox(redis_client), []

    async def redelivery_succeeds() -> None:
        try:
            async with inbox.once("c", "m") as is_first:
                assert is_first
                await redis_client.incr("effects")
        except MessageInHand as busy:
            refusals.append(busy.retry_after)
            raise AssertionError from busy

    await eventually(redelivery_succeeds)
    later = await consumer(redis_url, "not stuck")
    assert await later.wait() == 0

    assert refusals
    assert await redis_client.get("effects") == b"1"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"claim": 0}, "claim"),
        ({"window": -1}, "window"),
        ({"key": "processed:{message_id}"}, "key"),
        ({"key": "processed:{consumer}:{message_id}:{version}"}, "key"),
        ({"key": "{consumer"}, "key"),
        ({"key": None}, "key"),
    ],
)
def test_bad_redis_options_are_refused(options: dict[str, Any], match: str) -> None:
    """They are refused before Redis is asked."""
    with pytest.raises(InvalidOption, match=match):
        RedisInbox(redis.Redis(), **options)


def test_names_that_make_keys_ambiguous_are_refused() -> None:
    """Otherwise two messages of different consumers could have the same key."""
    with pytest.raises(InvalidOption, match="colon"):
        RedisInbox(redis.Redis()).once("a:b", "m")


def test_unknown_redis_client_is_refused() -> None:
    """The error says what to install."""
    with pytest.raises(InvalidInput, match=r"postbus\[redis\]"):
        RedisInbox(object())


def test_window_is_a_duration() -> None:
    """It may be given in any form that durations have."""
    assert RedisInbox(redis.Redis(), window=timedelta(minutes=1))._window == 60_000
