"""bus.pop(): taking messages of a queue, and settling them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from postbus import (
    Bus,
    Delivery,
    InvalidInput,
    InvalidOption,
    InvalidTopicName,
    LeaseLost,
    PayloadNotDecodable,
    Popped,
    WrongSemantics,
)
from support.pulling import leased, lose, send_numbers, states_of


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


@dataclass
class Order:
    """The payload of some messages."""

    number: int


async def test_pop_takes_the_oldest_messages(bus: Bus, conn: Any, topic: str) -> None:
    """Up to `batch` messages come in their order, with their fields and lease."""
    ids = [await bus.send(topic, {"n": number}, key="k", headers={"a": "b"}) for number in range(3)]

    popped = await bus.pop(topic, batch=2, lease="1 minute")

    assert [one.message.id for one in popped] == ids[:2]
    first = popped[0]
    assert (first.payload, first.message.key, first.message.headers, first.message.attempt) == (
        {"n": 0}, "k", {"a": "b"}, 1,
    )  # fmt: skip
    assert timedelta(seconds=50) < first.remaining <= timedelta(minutes=1)
    held = await conn.fetch("select token, ends_at from postbus.lease where token = $1", first.token)
    assert [(row["token"], row["ends_at"]) for row in held] == [(first.token, first.ends_at)]
    assert await leased(conn, topic) == 2


async def test_pop_of_an_empty_queue_is_empty(bus: Bus, topic: str) -> None:
    """The result is falsy, also for a topic that nobody has used."""
    popped = await bus.pop(topic)

    assert not popped
    assert list(popped) == popped[:] == []
    await popped.ack()


async def test_concurrent_pops_get_different_messages(bus: Bus, topic: str) -> None:
    """No message is leased twice, however many pops run at the same time."""
    ids = await send_numbers(bus, topic, 40)

    taken = await asyncio.gather(*(bus.pop(topic, batch=3) for _ in range(20)))

    got = [one.message.id for popped in taken for one in popped]
    assert sorted(got) == ids


async def test_payload_is_decoded_on_request(bus: Bus, topic: str) -> None:
    """It is decoded by its content type or to the caller's type, and an unsuitable type is an error."""
    await bus.send(topic, {"number": 7})
    await bus.send(topic, "text")

    first, second = await bus.pop(topic, batch=2)

    assert first.payload == {"number": 7}
    assert first.decode(Order) == Order(7)
    assert first.decode(dict[str, int]) == {"number": 7}
    assert (second.payload, second.decode(bytes)) == ("text", b"text")
    with pytest.raises(PayloadNotDecodable):
        second.decode(Order)
    with pytest.raises(InvalidOption, match="cannot be decoded to"):
        first.decode(asyncio.Event)


async def test_each_settlement_affects_one_message(bus: Bus, conn: Any, topic: str) -> None:
    """ack, retry, dead_letter and release settle one message, and leave the others in hand."""
    await send_numbers(bus, topic, 5)
    done, again, bad, back, kept = await bus.pop(topic, batch=5)

    await done.ack()
    await again.retry(delay=60, error="not now")
    await bad.dead_letter("no good", error="ValueError")
    await back.release()

    rows = await conn.fetch("select * from postbus.messages where topic = $1 order by id", topic)
    assert [(row["payload"], row["state"], row["attempts"]) for row in rows] == [
        (b"1", "retrying", 1),
        (b"2", "dead", 1),
        (b"3", "waiting", 0),
        (b"4", "leased", 1),
    ]
    assert (rows[0]["last_error"], rows[1]["last_error"]) == ("not now", "no good: ValueError")
    assert [one.is_open for one in (done, again, bad, back, kept)] == [False, False, False, False, True]


Settle = Callable[[Popped | Delivery], Awaitable[None]]

SETTLEMENTS: dict[str, tuple[Settle, dict[str, int]]] = {
    "ack": (lambda given: given.ack(), {}),
    "retry": (lambda given: given.retry(delay=60), {"retrying": 2}),
    "release": (lambda given: given.release(), {"waiting": 2}),
    "dead_letter": (lambda given: given.dead_letter("no good"), {"dead": 2}),
}


@pytest.mark.parametrize("settlement", SETTLEMENTS)
async def test_settling_the_pop_settles_its_open_messages(bus: Bus, conn: Any, topic: str, settlement: str) -> None:
    """Messages that were settled before stay as they are."""
    settle, left = SETTLEMENTS[settlement]
    await send_numbers(bus, topic, 3)
    popped = await bus.pop(topic, batch=3)
    await popped[1].ack()

    await settle(popped)

    assert await states_of(conn, topic) == left


async def test_message_can_be_settled_only_once(bus: Bus, topic: str) -> None:
    """A second settlement is an error of the caller."""
    await bus.send(topic, 1)
    popped = await bus.pop(topic)
    await popped.ack()

    with pytest.raises(InvalidInput, match="is settled already"):
        await popped[0].retry()
    await popped.ack()  # nothing is open


@pytest.mark.parametrize("settlement", [*SETTLEMENTS, "extend"])
async def test_settlement_with_a_lost_lease_raises_lease_lost(bus: Bus, conn: Any, topic: str, settlement: str) -> None:
    """After a lease has expired every settlement raises, each time, and changes nothing."""
    settle = SETTLEMENTS[settlement][0] if settlement in SETTLEMENTS else lambda given: given.extend()
    ids = await send_numbers(bus, topic, 2)
    popped = await bus.pop(topic, batch=2)
    await lose(conn, popped)

    with pytest.raises(LeaseLost, match=f"messages {ids[0]}, {ids[1]} is lost") as lost:
        await settle(popped)
    with pytest.raises(LeaseLost, match=f"message {ids[1]} is lost"):
        await settle(popped[1])

    assert list(lost.value.ids) == ids
    assert await states_of(conn, topic) == {"retrying": 2}
    for _ in ids:  # either may have ended the program that had both: each comes alone, and is not charged
        async with bus.pop(topic, batch=2) as others:
            assert [one.message.attempt for one in others] == [1]


async def test_expired_lease_is_returned_without_a_worker(bus: Bus, conn: Any, topic: str) -> None:
    """In a program that only pops, the next pop gets the messages of an expired lease."""
    await bus.send(topic, 1)
    first = await bus.pop(topic)
    await conn.execute("update postbus.lease set ends_at = clock_timestamp() where token = $1", first[0].token)

    second = await _pop_until_there(bus, topic)

    assert (second[0].message.id, second[0].message.attempt) == (first[0].message.id, 2)
    with pytest.raises(LeaseLost):
        await first.ack()
    await second.ack()


async def _pop_until_there(bus: Bus, topic: str) -> Any:
    """Pop until a message comes: expired leases are searched once a second."""
    async with asyncio.timeout(5):
        while not (popped := await bus.pop(topic)):
            pass
    return popped


async def test_extend_moves_the_end_of_the_whole_lease(bus: Bus, conn: Any, topic: str) -> None:
    """The new end is the given time from now, or the lease's own length."""
    await send_numbers(bus, topic, 2)
    popped = await bus.pop(topic, batch=2, lease=10)

    await popped[0].extend("1h")

    assert popped[1].remaining > timedelta(minutes=59)
    left = "select ends_at - clock_timestamp() from postbus.lease where token = $1"
    assert await conn.fetchval(left, popped[0].token) > timedelta(minutes=59)
    await popped.extend(20)
    assert timedelta(seconds=15) < await conn.fetchval(left, popped[0].token) <= timedelta(seconds=20)
    await popped.extend()
    assert timedelta(seconds=15) < popped[0].remaining <= timedelta(seconds=20)


async def test_auto_ack_settles_at_once(bus: Bus, conn: Any, topic: str) -> None:
    """Each message comes at most once, and nothing is left to settle."""
    await send_numbers(bus, topic, 3)

    popped = await bus.pop(topic, batch=2, auto_ack=True)

    assert popped.payloads == [0, 1]
    assert (popped[0].token, popped[0].ends_at, popped[0].remaining) == (None, None, timedelta(0))
    assert await states_of(conn, topic) == {"waiting": 1}
    for settlement in (popped.ack, popped.retry, popped[0].release, popped.extend):
        with pytest.raises(InvalidInput, match="auto_ack"):
            await settlement()
    async with bus.pop(topic, auto_ack=True) as last:
        assert last.payloads == [2]
    assert await states_of(conn, topic) == {}


async def test_leaving_the_block_acknowledges(bus: Bus, conn: Any, topic: str) -> None:
    """Messages that are still open at the end of `with` are acknowledged."""
    await send_numbers(bus, topic, 3)

    async with bus.pop(topic, batch=3) as popped:
        await popped[2].dead_letter("no good")
        assert await leased(conn, topic) == 2

    assert await states_of(conn, topic) == {"dead": 1}


async def test_leaving_the_block_by_an_error_retries(bus: Bus, conn: Any, topic: str) -> None:
    """Open messages are retried with the error, and the attempt counts."""
    await send_numbers(bus, topic, 2)

    with pytest.raises(ZeroDivisionError):
        async with bus.pop(topic, batch=2) as popped:
            await popped[0].ack()
            raise ZeroDivisionError("what went wrong")

    rows = await conn.fetch("select payload, state, attempts, last_error from postbus.messages where topic = $1", topic)
    assert [(row["payload"], row["state"], row["attempts"]) for row in rows] == [(b"1", "retrying", 1)]
    assert "ZeroDivisionError: what went wrong" in rows[0]["last_error"]


async def test_cancelled_block_retries_its_messages(bus: Bus, conn: Any, topic: str) -> None:
    """A cancelled consumer leaves no message leased."""
    await bus.send(topic, 1)
    inside = asyncio.Event()

    async def consume() -> None:
        async with bus.pop(topic):
            inside.set()
            await asyncio.Event().wait()

    consuming = asyncio.create_task(consume())
    await inside.wait()
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming

    assert await states_of(conn, topic) == {"retrying": 1}


async def test_leaving_the_block_reports_a_lost_lease(bus: Bus, conn: Any, topic: str) -> None:
    """A block that took too long raises LeaseLost, unless it raises an error of its own."""
    await bus.send(topic, 1)

    with pytest.raises(LeaseLost):
        async with bus.pop(topic) as popped:
            await lose(conn, popped)
    with pytest.raises(ZeroDivisionError):
        async with bus.pop(topic) as popped:
            await lose(conn, popped)
            raise ZeroDivisionError

    assert await states_of(conn, topic) == {"retrying": 1}


async def test_pop_can_be_entered_only_once(bus: Bus, topic: str) -> None:
    """A nested block of the same pop would settle the wrong messages."""
    pop = bus.pop(topic)
    async with pop:
        with pytest.raises(InvalidInput, match="in use already"):
            await pop.__aenter__()


async def test_kept_leases_are_extended_while_the_block_runs(bus: Bus, conn: Any, topic: str) -> None:
    """`keep=True`, or `keep()`, extends a lease repeatedly, and no longer than the block runs."""
    await send_numbers(bus, topic, 2)
    ends = "select ends_at from postbus.lease where token = $1"

    async with bus.pop(topic, lease=1, keep=True) as popped:
        first = await conn.fetchval(ends, popped[0].token)
        await _is_later(conn, ends, popped[0].token, first + timedelta(seconds=1))
        assert popped[0].remaining > timedelta(0)
    other = await bus.pop(topic, lease=1)
    async with other.keep():
        await _is_later(conn, ends, other[0].token, await conn.fetchval(ends, other[0].token))
    await other.ack()

    assert await states_of(conn, topic) == {}


async def _is_later(conn: Any, ends: str, token: Any, than: Any) -> None:
    async with asyncio.timeout(10):
        while await conn.fetchval(ends, token) <= than:
            await asyncio.sleep(0.05)


async def test_waiting_pop_gets_the_next_message_of_a_freed_key(bus: Bus, topic: str) -> None:
    """In an ordered queue the next message of a key is popped as soon as the one before is settled."""
    await bus.admin.create_topic(topic, ordered=True)
    await send_numbers(bus, topic, 2, key="k")
    first = await bus.pop(topic, batch=2)
    waiting = asyncio.ensure_future(_popped(bus, topic))
    await asyncio.sleep(0)
    await first.ack()

    second = await asyncio.wait_for(waiting, 5)

    assert (first.payloads, second.payloads) == ([0], [1])
    await second.ack()


async def _popped(bus: Bus, topic: str) -> Any:
    return await bus.pop(topic, wait=10)


async def test_member_name_is_shown(bus: Bus, conn: Any, topic: str) -> None:
    """Without `member` the name of the process is shown."""
    await send_numbers(bus, topic, 2)
    await bus.pop(topic, member="till 3")
    await bus.pop(topic)

    members = await conn.fetch("select member from postbus.messages where topic = $1 order by id", topic)

    assert members[0]["member"] == "till 3"
    assert len(members[1]["member"].split(":")) == 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch": 0}, "batch 0"),
        ({"batch": 10_001}, "batch 10001"),
        ({"batch": True}, "batch True"),
        ({"wait": -1}, "wait -1"),
        ({"wait": float("nan")}, "wait nan"),
        ({"wait": "soon"}, "wait 'soon'"),
        ({"lease": 0.5}, "lease 0:00:00.500000"),
        ({"lease": "long"}, "lease 'long'"),
        ({"group": ""}, "bad group name ''"),
        ({"group": "a b"}, "bad group name 'a b'"),
        ({"key": 5}, "key 5"),
        ({"key": "\0"}, "key"),
        ({"member": b"x"}, "member b'x'"),
        ({"count": 5}, "no option 'count'"),
        ({"auto_ack": True, "lease": 5}, "with auto_ack there is no lease"),
        ({"auto_ack": True, "keep": True}, "nothing to keep"),
    ],
)
def test_bad_pop_options_are_refused_at_once(options: dict[str, Any], problem: str) -> None:
    """They are refused with a remedy before the database is asked."""
    bus = Bus("postgresql://postgres@127.0.0.1:1/nowhere")

    with pytest.raises(InvalidOption, match=problem) as refused:
        bus.pop("t", **options)

    assert refused.value.remedy
    with pytest.raises(InvalidTopicName):
        bus.pop("no such name")


async def test_keep_needs_a_block(bus: Bus, topic: str) -> None:
    """Without a block nothing would end the extensions."""
    with pytest.raises(InvalidOption, match="async with"):
        await bus.pop(topic, keep=True)


async def test_bad_settlements_are_refused(bus: Bus, conn: Any, topic: str) -> None:
    """A bad delay or lease is an error, and the message stays in hand."""
    await bus.send(topic, 1)
    popped = await bus.pop(topic)

    with pytest.raises(InvalidOption, match="negative"):
        await popped[0].retry(delay=-1)
    with pytest.raises(InvalidOption, match="too short"):
        await popped.extend(0)
    with pytest.raises(InvalidInput, match="builtins.str"):
        await popped.ack("no connection")

    assert popped[0].is_open
    await popped.ack()
    assert await states_of(conn, topic) == {}


async def test_pop_without_a_group_is_refused_on_pub_sub(bus: Bus, topic: str) -> None:
    """The refusal comes at once, also for a pop that waits."""
    await bus.admin.create_topic(topic, semantics="PUB_SUB")

    for wait in (0, 30):
        with pytest.raises(WrongSemantics):
            await bus.pop(topic, wait=wait)
