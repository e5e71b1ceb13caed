"""Importing: layouts, topics and their options, queues, refusals, and duration."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import msgspec
import pytest

from postbus import AccessDenied, Bus, InvalidInput, InvalidOption, Message, PostbusError, Start, WrongSemantics
from postbus.events import Registry
from postbus.inbox import Inbox
from postbus.options import Semantics
from support.grouping import has
from support.old_outbox import (
    FAN_OUT,
    SIMPLE,
    add_messages,
    add_topic,
    check,
    counts,
    fail,
    finish,
    groups_of,
    listen,
    numbers,
)
from support.running import running

MESSAGES = int(os.environ.get("POSTBUS_IMPORT_MESSAGES", "10000"))


@pytest.fixture
async def outbox(conn: Any) -> Any:
    """Set up a PUB_SUB topic with a group that has 60 messages before it."""
    await conn.execute(FAN_OUT)
    await add_topic(conn, email="ACTIVE")
    await add_messages(conn, range(60))
    return conn


async def add_events(conn: Any, count: int, aggregate_type: str = "order") -> None:
    """Add pending events of three aggregates in turn, and a published one."""
    await conn.execute(
        "insert into outbox_events (event_type, aggregate_type, aggregate_id, payload_json, created_at, attempt_count, "
        "published_at) select case when n % 2 = 0 then 'created' else 'changed' end, $2, "
        "lpad((n % 3)::text, 32, '0')::uuid, jsonb_build_object('n', n), now() + n * interval '1 ms', "
        "case when n = 2 then 5 else 0 end, case when n = 0 then now() end from generate_series(0, $1) as n",
        count,
        aggregate_type,
    )


async def test_events_go_to_a_queue_by_aggregate_type(bus: Bus, conn: Any) -> None:
    """Unpublished events keep their order, identity, time, aggregate and type."""
    await conn.execute(SIMPLE)
    await add_events(conn, 9)
    await add_events(conn, 2, "license")

    result = await bus.admin.import_outbox()

    assert result.layout == "simple"
    assert [(one.name, one.semantics, one.messages) for one in result.topics] == [
        ("license", "QUEUE", 2),
        ("order", "QUEUE", 9),
    ]
    waiting = await bus.admin.messages("order")
    assert [json.loads(one.payload)["n"] for one in waiting] == list(range(1, 10))
    event = await conn.fetchrow(
        "select * from outbox_events where payload_json @> '{\"n\": 2}' and aggregate_type = 'order'"
    )
    second, headers = waiting[1], waiting[1].headers
    assert (second.attempts, second.key, second.content_type) == (
        5,
        str(event["aggregate_id"]),
        "application/json",
    )
    assert headers == {
        "event-id": str(event["id"]),
        "event-type": "created",
        "aggregate-type": "order",
        "aggregate-id": str(event["aggregate_id"]),
    }
    assert (second.event_id, second.published_at) == (str(event["id"]), event["created_at"])
    assert (await bus.admin.import_outbox()).messages == 0


async def test_events_go_to_a_named_log(bus: Bus, conn: Any) -> None:
    """A group that starts at the beginning gets them, each aggregate's in order; late events come later."""
    await conn.execute(SIMPLE)
    await add_events(conn, 30)
    got = listen(bus, "g", "events.all", start=Start.BEGINNING)
    await bus.admin.import_outbox(topic="events.all", semantics="PUB_SUB")

    async with running(bus):
        await has(got, 30)
        await add_events(conn, 3)
        again = await bus.admin.import_outbox("outbox_events", topic="events.all", semantics="PUB_SUB")
        await has(got, 33)

    check(got[:30], range(1, 31))
    assert (again.messages, sorted(numbers(got[30:]))) == (3, [1, 2, 3])


class OrderEvent(msgspec.Struct):
    """The content of the old table's events."""

    n: int


@pytest.mark.parametrize("semantics", ["QUEUE", "PUB_SUB"])
async def test_imported_events_pass_the_registry_with_identity_and_time(
    bus: Bus, conn: Any, semantics: Semantics
) -> None:
    """The registry reads their headers, and an inbox from before the import knows them."""
    registry = Registry()
    for name in ("created", "changed"):
        registry.event(name, topic="order", aggregate="order")(type(name, (OrderEvent,), {}))
    await conn.execute(SIMPLE)
    await add_events(conn, 9)
    old = {
        json.loads(row["payload_json"])["n"]: row
        for row in await conn.fetch("select * from outbox_events where published_at is null")
    }
    await conn.execute("select postbus.inbox_once('mail', $1)", str(old[4]["id"]))
    await bus.admin.import_outbox(semantics=semantics, topic="order")
    got: list[Message] = []
    options: dict[str, Any] = {"group": "g", "start": Start.BEGINNING} if semantics == "PUB_SUB" else {}
    inbox = Inbox()

    @bus.subscribe("order", transactional=True, **options)
    @inbox.idempotent("mail")
    async def handle(message: Message, conn: Any) -> None:
        registry.check(message)
        got.append(message)

    async with running(bus):
        await has(got, 8)
    assert await bus.admin.dead_letters("order") == []
    assert sorted(numbers(got)) == [1, 2, 3, 5, 6, 7, 8, 9], "the fourth was handled before the move"
    for n, message in zip(numbers(got), got, strict=True):
        assert (message.event_id, message.published_at) == (str(old[n]["id"]), old[n]["created_at"])


@pytest.mark.parametrize("semantics", ["QUEUE", "PUB_SUB"])
async def test_events_with_exhausted_attempts_become_dead_letters(bus: Bus, conn: Any, semantics: Semantics) -> None:
    """They keep attempts and error, and a redrive returns them with their identity."""
    await conn.execute(SIMPLE)
    await add_events(conn, 3)
    spent = await conn.fetchrow(
        "update outbox_events set attempt_count = 25, last_error = 'no broker' "
        "where payload_json @> '{\"n\": 2}' returning *"
    )
    await conn.execute("update outbox_events set attempt_count = 24 where payload_json @> '{\"n\": 3}'")

    result = await bus.admin.import_outbox(semantics=semantics, topic="order")

    [dead] = await bus.admin.dead_letters("order")
    assert (dead.attempts, dead.last_error, dead.event_id) == (25, "no broker", str(spent["id"]))
    assert dead.published_at == spent["created_at"]
    assert dead.reason == "its attempts were used up before it was imported"
    assert result.messages == 3
    assert "1 message of order had used up its attempts and is a dead letter" in result.notes[0]
    got = listen(bus, "g", "order", start=Start.BEGINNING) if semantics == "PUB_SUB" else []
    if semantics == "QUEUE":

        @bus.subscribe("order")
        async def handle(payload: dict[str, int], message: Message) -> None:
            got.append(message)

    async with running(bus):
        await has(got, 2)
        await bus.admin.redrive("order", group="g" if semantics == "PUB_SUB" else None)
        await has(got, 3)
    assert numbers(got[2:]) == [2]
    assert (got[2].event_id, got[2].published_at) == (str(spent["id"]), spent["created_at"])


async def test_exhausted_messages_become_dead_letters_of_their_group(bus: Bus, conn: Any) -> None:
    """They keep the error, and other groups get the message."""
    await conn.execute(FAN_OUT)
    await add_topic(conn, email="ACTIVE", stock="ACTIVE")
    await add_messages(conn, range(1, 4))
    await fail(conn, "email", 2, 25)
    email, stock = listen(bus, "email"), listen(bus, "stock")

    await bus.admin.import_outbox()

    async with running(bus):
        await has(email, 2)
        await has(stock, 3)
    assert (sorted(numbers(email)), sorted(numbers(stock))) == ([1, 3], [1, 2, 3])
    [dead] = await bus.admin.dead_letters("t")
    assert (dead.group_name, dead.attempts, dead.last_error) == ("email", 25, "no luck")
    at_stock = next(one for one in stock if numbers([one]) == [2])
    assert dead.event_id == at_stock.event_id, "the same message to both groups"
    deliveries = await bus.admin.deliveries("t", dead.id)
    assert {one.group_name: one.status for one in deliveries} == {"email": "DEAD", "stock": "COMPLETED"}


async def test_fan_out_messages_keep_their_time_and_event_headers(bus: Bus, conn: Any) -> None:
    """This includes deferred messages, and headers that were written by another convention."""
    await conn.execute(FAN_OUT)
    await add_topic(conn, email="ACTIVE", stock="ACTIVE")
    await add_messages(conn, range(1, 6))
    await conn.execute("update outbox set created_at = '2024-05-01'::timestamptz + id * interval '1 second'")
    await conn.execute("update outbox set created_at = null where id = 5")
    await conn.execute(
        "update outbox set headers = $1 where id = 3",
        json.dumps({"event_type": "placed", "event_id": "evt-3", "aggregate-id": "7"}),
    )
    await finish(conn, "email", [4, 5])
    email, stock = listen(bus, "email"), listen(bus, "stock")

    await bus.admin.import_outbox()

    async with running(bus):
        await has(email, 3)
        await has(stock, 5)
    by_number = dict(zip(numbers(stock), stock, strict=True))
    old = dict(await conn.fetch("select id, created_at from outbox where id < 5"))
    assert {n: one.published_at for n, one in by_number.items() if n < 5} == old
    assert {n: one.event_id for n, one in zip(numbers(email), email, strict=True)} == {
        n: by_number[n].event_id for n in (1, 2, 3)
    }
    assert len({one.event_id for one in stock}) == 5
    third = by_number[3]
    assert (third.event_id, third.headers["event-type"], third.headers["aggregate-id"]) == ("evt-3", "placed", "7")


async def test_bad_event_id_is_reported_and_its_row_stays(bus: Bus, conn: Any) -> None:
    """The row remains in the old table."""
    await conn.execute(SIMPLE.replace("id uuid primary key default gen_random_uuid()", "id text primary key"))
    await conn.execute(
        "insert into outbox_events (id, event_type, aggregate_type, aggregate_id, payload_json) values "
        "('fine', 'e', 'a', gen_random_uuid(), '1'), (repeat('x', 201), 'e', 'a', gen_random_uuid(), '2')"
    )
    result = await bus.admin.import_outbox()
    assert result.messages == 1
    assert [one.problem for one in result.not_imported] == [
        "header event-id is not an identity: 1 to 200 printable ASCII characters"
    ]


async def test_topic_name_can_be_a_template(bus: Bus, conn: Any) -> None:
    """It may contain the event type, the aggregate type, or both."""
    await conn.execute(SIMPLE)
    await add_events(conn, 4)

    result = await bus.admin.import_outbox(topic="v1.{aggregate_type}.{event_type}", dry_run=True)

    assert [(one.name, one.messages) for one in result.topics] == [("v1.order.changed", 2), ("v1.order.created", 2)]


async def test_other_column_names_are_recognised(bus: Bus, conn: Any) -> None:
    """`event_id`, `payload` and `attempts` work, with numeric ids, in a schema of its own."""
    await conn.execute(
        'create schema legacy; create table legacy."Events" (event_id bigserial, event_type text, aggregate_type text, '
        "aggregate_id int, payload bytea, created_at timestamp default now(), published_at timestamp, attempts int, "
        "correlation_id text);"
        'insert into legacy."Events" (event_type, aggregate_type, aggregate_id, payload, attempts, correlation_id) '
        "select 'e', 'a', 1, '\\x00ff', 1, 'c' from generate_series(1, 12)"
    )

    result = await bus.admin.import_outbox('legacy."Events"')

    assert (result.table, result.messages) == ('legacy."Events"', 12)
    one = (await bus.admin.messages("a"))[-1]
    assert (one.payload, one.content_type) == (b"\x00\xff", "application/octet-stream")
    assert (one.attempts, one.correlation_id, one.event_id) == (1, "c", "12")


async def test_topic_options_are_imported(bus: Bus, conn: Any) -> None:
    """Semantics, tracking and options come along, and null means our default."""
    await conn.execute(FAN_OUT)
    await conn.execute(
        "insert into outbox_topics values ('log', 'PUB_SUB', 1000, 48, true, 'OFFSET_WATERMARK'), "
        "('counted', 'PUB_SUB', null, null, null, 'REFERENCE_COUNTING'), ('queue', 'QUEUE', 12, 24, false, null)"
    )

    await bus.admin.import_outbox(options={"max_attempts": 7})

    log, counted, queue = [await bus.admin.topic(name) for name in ("log", "counted", "queue")]
    assert (log.semantics, log.tracking, log.max_attempts) == ("PUB_SUB", "OFFSET_WATERMARK", 7)
    kept = (log.retention, log.zero_subscription_retention, log.max_retention)
    assert [one.total_seconds() / 3600 for one in kept] == [1000, 48, 1000]
    assert log.block_writes_on_zero_subscriptions is True
    assert (queue.semantics, queue.retention.total_seconds()) == ("QUEUE", 12 * 3600)
    assert (counted.tracking, counted.retention.total_seconds()) == ("REFERENCE_COUNTING", 24 * 3600)


async def test_queue_messages_are_imported(bus: Bus, conn: Any) -> None:
    """Pending messages come in the order of ids, with keys, times and attempts; completed ones stay."""
    await conn.execute(FAN_OUT)
    await add_topic(conn, "q", "QUEUE")
    await add_messages(conn, range(1, 11), "q", keys=2)
    await add_messages(conn, [11, 12], "unconfigured", keys=0)
    await conn.execute("update outbox set status = 'COMPLETED' where id in (2, 4)")
    await conn.execute("update outbox set status = 'FAILED', retry_count = 2, created_at = '2024-05-01' where id = 3")
    await conn.execute("update outbox set status = 'PROCESSING' where id = 5")

    result = await bus.admin.import_outbox()

    assert [(one.name, one.semantics, one.messages) for one in result.topics] == [
        ("q", "QUEUE", 8),
        ("unconfigured", "QUEUE", 2),
    ]
    waiting = await bus.admin.messages("q")
    assert [json.loads(one.payload)["n"] for one in waiting] == [1, 3, 5, 6, 7, 8, 9, 10]
    tried = waiting[1]
    assert (tried.attempts, tried.key, tried.correlation_id, tried.published_at.year) == (
        2,
        "k1",
        "c3",
        2024,
    )
    got: list[Message] = []

    @bus.subscribe("q")
    async def handle(payload: dict[str, int], message: Message) -> None:
        got.append(message)

    async with running(bus):
        await has(got, 8)
    assert {numbers([one])[0]: one.attempt for one in got}[3] == 3
    assert (await bus.admin.import_outbox()).messages == 0


async def test_only_one_import_runs_at_a_time(bus: Bus, dsn: str, outbox: Any) -> None:
    """A second one is refused while the first is under way, and works afterwards."""
    holding: Any = await asyncpg.connect(dsn)
    await holding.execute("begin; lock table postbus.imported")
    running_import = asyncio.create_task(bus.admin.import_outbox())
    async with Bus.open(dsn) as other:
        while not await holding.fetchval(
            "select exists (select from pg_locks where locktype = 'advisory' and granted)"
        ):
            await asyncio.sleep(0)
        with pytest.raises(InvalidInput, match="another import"):
            await other.admin.import_outbox()
        await holding.execute("rollback")
        await holding.close()
        assert (await running_import).messages == 60
        assert (await other.admin.import_outbox()).messages == 0


@pytest.mark.parametrize(
    ("sql", "options", "error", "words"),
    [
        ("select 1", {}, InvalidInput, "there is no table outbox or outbox_events"),
        (FAN_OUT, {"table": "elsewhere.box"}, InvalidInput, "there is no table elsewhere.box"),
        (
            "create table outbox (id int, topic text)",
            {},
            InvalidInput,
            "as fan-out it lacks payload, status, created_at",
        ),
        (
            FAN_OUT + "alter table outbox_consumer_groups rename message_id to outbox_id",
            {},
            InvalidInput,
            "public.outbox_consumer_groups lacks message_id",
        ),
        (FAN_OUT, {"layout": "simple"}, InvalidInput, "as simple it lacks event_type"),
        (FAN_OUT, {"layout": "odd"}, InvalidOption, "use fan-out or simple"),
        (FAN_OUT, {"only": ["nothing"]}, InvalidInput, "has no topic 'nothing'"),
        (FAN_OUT, {"topic": "t"}, InvalidInput, "has topics of its own"),
        (FAN_OUT, {"semantics": "PUBSUB"}, InvalidOption, "use QUEUE or PUB_SUB"),
        (
            FAN_OUT + "insert into outbox_topics values ('t')",
            {"options": {"size": 1}},
            InvalidOption,
            "no option 'size'",
        ),
    ],
)
async def test_impossible_imports_are_refused(
    bus: Bus, conn: Any, sql: str, options: dict[str, Any], error: type[PostbusError], words: str
) -> None:
    """The error says what is missing, and nothing has changed."""
    await conn.execute(sql)
    before = await counts(conn)

    with pytest.raises(error) as refused:
        await bus.admin.import_outbox(**options)

    assert words in str(refused.value)
    assert await counts(conn) == before


async def test_import_into_a_topic_of_other_semantics_is_refused(bus: Bus, outbox: Any) -> None:
    """A topic that is a QUEUE here does not become a log."""
    await bus.admin.create_topic("t")

    with pytest.raises(WrongSemantics, match="is QUEUE here, and PUB_SUB in public.outbox"):
        await bus.admin.import_outbox()


async def test_import_needs_admin_and_the_right_to_read_the_table(
    dsn: str, outbox: Any, roles: Callable[[str], str]
) -> None:
    """A user who may not read the old tables gets AccessDenied."""
    user = f"importer_{secrets.token_hex(8)}"
    await outbox.execute(f"create role {user} login in role {roles('admin')}")
    try:
        async with Bus.open(dsn.replace("postgres@", f"{user}@")) as bus:
            with pytest.raises(AccessDenied, match="permission denied for table outbox"):
                await bus.admin.import_outbox()
            await outbox.execute(f"grant select on all tables in schema public to {user}")
            assert (await bus.admin.import_outbox()).messages == 60
    finally:
        await outbox.execute(f"drop owned by {user}; drop role {user}")


@pytest.mark.parametrize("at_once", [True, False])
async def test_large_import_is_fast_and_reports_progress(bus: Bus, conn: Any, at_once: bool) -> None:
    """50,000 messages take seconds, also if each was created at a time of its own."""
    await conn.execute(FAN_OUT)
    await add_topic(conn, a="ACTIVE", b="ACTIVE", c="ACTIVE")
    await add_messages(conn, range(MESSAGES), keys=100)
    if not at_once:
        await conn.execute("update outbox set created_at = created_at + id * interval '1 ms'")
    most, few = MESSAGES * 4 // 5, MESSAGES // 5
    await finish(conn, "a", set(range(most)) - set(range(0, most, 100)))
    await finish(conn, "b", range(few))
    told: list[tuple[int, int]] = []
    begun = time.perf_counter()

    result = await bus.admin.import_outbox(progress=lambda done, total: told.append((done, total)))

    took = time.perf_counter() - begun
    print(f"\n{result.messages} messages to three groups in {took:.1f} s")
    assert {name: (one.messages, one.deferred) for name, one in groups_of(result).items()} == {
        "a": (few + most // 100, most // 100),
        "b": (most, 0),
        "c": (MESSAGES, 0),
    }
    assert told[-1] == (MESSAGES, MESSAGES)
    assert len(told) > 2
    assert took < 60
