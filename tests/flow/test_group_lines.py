"""JSON published in bulk is stored as lines, and handled as messages like all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from postbus import Bus, DeadLetter, Message, Outgoing, Retry
from support.eventually import eventually
from support.grouping import SOON, create_log, has, is_through
from support.running import running

COUNT = 20


class Order(msgspec.Struct):
    """The payload that handlers ask for."""

    n: int


async def publish(bus: Bus, conn: Any, payloads: Sequence[Any] = ()) -> list[int]:
    """Publish dicts, which are stored as lines."""
    given = payloads or [{"n": n} for n in range(COUNT)]
    async with conn.transaction():
        ids: list[int] = await bus.publish_many(conn, "t", given)
    assert await conn.fetchval("select array_agg(coalesce(in_lines, false)) from postbus.segment") == [True]
    return ids


@pytest.mark.parametrize("kind", [Order, dict[str, int], bytes, Message, Any])
@pytest.mark.parametrize("batch", [None, 7, 1000])
async def test_every_kind_of_handler_gets_messages_of_lines(bus: Bus, conn: Any, kind: Any, batch: int | None) -> None:
    """Messages come in order, decoded as the handler asks, with the returned ids; other groups get them as well."""
    await create_log(bus, lanes=1)
    got: list[Any] = []
    ids: list[int] = []
    others: list[int] = []

    if batch is None:

        async def handle(payload: Any, message: Message) -> None:
            got.append(payload)
            ids.append(message.id)

        handle.__annotations__["payload"] = kind
        bus.subscribe("t", group="g", start="FROM_BEGINNING")(handle)
    else:

        async def handle_many(payloads: list[Any], messages: list[Message]) -> None:
            got.extend(payloads)
            ids.extend(message.id for message in messages)

        handle_many.__annotations__["payloads"] = list[kind]
        bus.subscribe("t", group="g", start="FROM_BEGINNING", batch=batch)(handle_many)

    @bus.subscribe("t", group="other", start="FROM_BEGINNING")
    async def note(order: Order) -> None:
        others.append(order.n)

    published = await publish(bus, conn)
    async with running(bus):
        await has(got, COUNT)
        await has(others, COUNT)
        await is_through(conn)

    made = [message.payload for message in got] if kind is Message else got
    expected = {
        Order: [Order(n) for n in range(COUNT)],
        bytes: [b'{"n":%d}' % n for n in range(COUNT)],
        Message: [b'{"n":%d}' % n for n in range(COUNT)],
    }
    assert made == expected.get(kind, [{"n": n} for n in range(COUNT)])
    assert ids == published
    assert others == list(range(COUNT))


async def test_failed_line_is_retried_alone(bus: Bus, conn: Any) -> None:
    """It is deferred with its own payload, and as a dead letter it can be inspected and redriven."""
    await create_log(bus)
    got: list[int] = []
    is_mended = False

    @bus.subscribe("t", group="g", start="FROM_BEGINNING", retry=SOON)
    async def handle(order: Order) -> Retry | DeadLetter | None:
        got.append(order.n)
        if order.n == 3 and got.count(3) == 1:
            return Retry()
        if order.n == 5 and not is_mended:
            return DeadLetter(reason="not five")
        return None

    ids = await publish(bus, conn)

    async def it_is_dead() -> None:
        [letter] = await bus.admin.dead_letters("t")
        assert (letter.id, letter.payload) == (ids[5], b'{"n":5}')

    async with running(bus):
        await has(got, COUNT + 1)
        await eventually(it_is_dead)
        is_mended = True
        assert await bus.admin.redrive("t", group="g") == 1
        await has(got, COUNT + 2)
        await is_through(conn)
    assert sorted(got) == sorted([*range(COUNT), 3, 5])


async def test_undecodable_line_is_a_dead_letter_and_others_are_handled(bus: Bus, conn: Any) -> None:
    """The bad message is one of a batch that is read together."""
    await create_log(bus)
    got: list[int] = []

    @bus.subscribe("t", group="g", start="FROM_BEGINNING", batch=100)
    async def handle(orders: list[Order]) -> None:
        got.extend(order.n for order in orders)

    await publish(bus, conn, [{"n": 1}, {"n": "two"}, {"n": 3}])
    async with running(bus):
        await has(got, 2)
        await is_through(conn, dead=1)
    assert sorted(got) == [1, 3]


async def test_filters_and_transactions_see_single_messages(bus: Bus, conn: Any) -> None:
    """A transactional handler gets the messages that its filter accepts."""
    await create_log(bus)
    await conn.execute("create table effect (n integer)")

    def accepts(message: Message) -> bool:
        return message.payload.endswith((b"0}", b"2}"))

    @bus.subscribe("t", group="g", start="FROM_BEGINNING", transactional=True, filter=accepts)
    async def handle(order: Order, conn: Any) -> None:
        await conn.execute("insert into effect values ($1)", order.n)

    await publish(bus, conn)
    async with running(bus):
        await is_through(conn)
    assert await conn.fetchval("select array_agg(n order by n) from effect") == [0, 2, 10, 12]


async def test_messages_with_options_or_other_types_are_not_stored_as_lines(bus: Bus, conn: Any) -> None:
    """Keys, other types and line breaks survive unchanged beside lines."""
    await create_log(bus, lanes=1)
    odd: list[list[Any]] = [
        [{"n": 1}, {"n": 2}],
        [{"n": 3}, Outgoing(payload={"n": 4}, key="k")],
        [{"n": 5}, "six\nlines", b"\n", [7], {"n": None}, {"n": "\ud800"}],
        [{"n": 8, "text": "a\nb"}, {"n": 9}],
        [{"n": 10}],
    ]
    got: list[Any] = []

    @bus.subscribe("t", group="g", start="FROM_BEGINNING")
    async def handle(payload: Any) -> None:
        got.append(payload)

    for some in odd:
        await bus.send_many("t", some)
    async with running(bus):
        await has(got, sum(map(len, odd)))
    expected = [one.payload if isinstance(one, Outgoing) else one for some in odd for one in some]
    assert sorted(map(repr, got)) == sorted(map(repr, expected))
    kinds = await conn.fetchval("select array_agg(coalesce(in_lines, false) order by sequence) from postbus.segment")
    assert kinds == [True, False, False, True, False]


async def test_queue_splits_lines_into_messages(bus: Bus) -> None:
    """Each of them is a separate message there."""
    await bus.send_many("t", [{"n": 1}, {"n": 2}])

    assert [row.payload for row in await bus.admin.messages("t")] == [b'{"n":1}', b'{"n":2}']
