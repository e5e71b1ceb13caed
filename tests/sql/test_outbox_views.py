"""The schema postbus_outbox: questions that people ask a fan-out outbox, word for word, with the true answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from postbus import Bus, DeadLetter, NoActiveSubscriptions, Outgoing, RetryPolicy
from postbus.options import Tracking
from support.eventually import eventually
from support.grouping import are_listed, group_row, has, is_through
from support.log_sql import let_die, rotate, sweep
from support.outbox_questions import (
    ACTIVE_COUNT,
    BACKFILL,
    CLEANUP,
    COMPLETION,
    EMAIL_HEARTBEAT,
    EMAIL_PROCESSED,
    EMAIL_START,
    EMAIL_STATUS,
    GROUP_STATES,
    HEALTH,
    INCONSISTENT,
    LAG,
    NEAR_TIMEOUT,
    NOT_COMPLETED,
    ORPHANED,
    RECEIVING,
    RETENTION,
    STUCK,
    ZERO_SUBSCRIPTIONS,
)
from support.running import running

LATER = RetryPolicy(initial=3600, factor=1, maximum=3600, max_attempts=3)


class History:
    """The events in the database, as the test knows them."""

    begun_at: datetime
    ended_at: datetime
    dead: int
    retrying: int


@pytest.fixture
async def history(bus: Bus, dsn: str, conn: Any) -> History:
    """Set up groups that have worked: email is ACTIVE and failed twice, analytics is PAUSED, inventory is DEAD."""
    known = History()
    known.begun_at = await conn.fetchval("select clock_timestamp()")
    await bus.admin.create_topic("orders.events", semantics="PUB_SUB", retention="36h")
    await bus.admin.create_topic("audit", semantics="PUB_SUB")
    await bus.admin.create_topic("jobs", retention="1h")
    await bus.send("orders.events", "published before there was a group")
    await bus.send("audit", 1)
    await bus.send("audit", 2)
    got: dict[str, list[Any]] = {"email": [], "analytics": [], "inventory": []}

    @bus.subscribe("orders.events", group="email-service", retry=LATER)
    async def email(n: int) -> DeadLetter | None:
        got["email"].append(n)
        if n == 4:
            raise ValueError("no such address")
        return DeadLetter(reason="never") if n == 3 else None

    @bus.subscribe("orders.events", group="analytics-service")
    async def analytics(n: int) -> None:
        got["analytics"].append(n)

    @bus.subscribe("jobs")
    async def job(n: int) -> DeadLetter | None:
        return DeadLetter(reason="never") if n == 2 else None

    async def jobs_are_done() -> None:
        assert await conn.fetchval("select count(*) from postbus.messages where state in ('finished', 'dead')") == 3

    async def has_stopped() -> None:
        assert (await group_row(conn, "analytics-service", "orders.events"))["lanes_held"] == 0

    async with Bus.open(dsn) as other, running(bus):

        @other.subscribe("orders.events", group="inventory-service")
        async def inventory(n: int) -> None:
            got["inventory"].append(n)

        async with running(other):
            await are_listed(conn, 3)
            async with bus.transaction() as tx:
                ids = await bus.publish_many(tx, "orders.events", [Outgoing(payload=n) for n in range(10)])
            known.dead, known.retrying = ids[3], ids[4]
            for numbers in got.values():
                await has(numbers, 10)
            await is_through(conn, "analytics-service", "orders.events")
            await is_through(conn, "inventory-service", "orders.events")
        await bus.admin.pause_group("orders.events", "analytics-service")
        await eventually(has_stopped)
        for n in range(10, 15):
            await bus.send("orders.events", n)
        await is_through(conn, "email-service", "orders.events", retrying=1)
        await bus.send("jobs", 1)
        await bus.send("jobs", 2)
        await eventually(jobs_are_done)
    await let_inventory_die(conn)
    await bus.send("orders.events", 15)
    await bus.send("orders.events", 16)
    await bus.send("jobs", 3)
    known.ended_at = await conn.fetchval("select clock_timestamp()")
    return known


async def let_inventory_die(conn: Any) -> None:
    await conn.execute(
        "update postbus.subscription set seen_at = clock_timestamp() - interval '1 hour' "
        "where group_name = 'inventory-service'"
    )
    storage = await conn.fetchval("select storage_id from postbus.topic where name = 'orders.events'")
    assert await let_die(conn, storage, timedelta(minutes=3)) == 1


def _is_recent(at: datetime, known: History) -> bool:
    return known.begun_at <= at <= known.ended_at


def _has_beaten(rows: list[Any], known: History) -> None:
    [(at, age)] = rows
    assert _is_recent(at, known)
    assert timedelta(0) <= age < timedelta(minutes=1)


def _has_started(rows: list[Any], known: History) -> None:
    [(first, at)] = rows
    assert at is None
    assert first <= known.dead - 3, "the first one that it was given"
    assert first > 1024, "and none from before"


def _all_are_shown(rows: list[Any], known: History) -> None:
    states = [("analytics-service", "PAUSED"), ("email-service", "ACTIVE"), ("inventory-service", "DEAD")]
    assert [row[:3] for row in rows] == [("orders.events", *state) for state in states]
    ages = [row[4] for row in rows]
    assert ages[1] < timedelta(minutes=1)
    assert timedelta(minutes=59) < ages[2] < timedelta(minutes=62)


def _rates(rows: list[Any], known: History) -> None:
    found = {row[0]: row[1:] for row in rows}
    assert set(found) == {"orders.events", "audit", "jobs"}
    assert found["audit"] == (2, None, 0)
    assert found["jobs"] == (3, pytest.approx(1 / 3), 1)
    # Of 17 messages 8 are settled by all three groups or by both that live; email failed two that inventory had too;
    # analytics was paused for five.
    assert found["orders.events"] == (18, pytest.approx((8 + 2 * 2 / 3 + 5 / 2) / 17), 8)


def _nobody_wanted(rows: list[Any], known: History) -> None:
    assert {row[0]: row[1] for row in rows} == {"orders.events": 1, "audit": 2}
    assert all(_is_recent(row[2], known) for row in rows)


Answer = Callable[[list[Any], History], None]


def _is(*expected: Any) -> Answer:
    def same(rows: list[Any], known: History) -> None:
        assert sorted(rows) == sorted(expected)

    return same


def _failed(rows: list[Any], known: History) -> None:
    assert rows == [(known.retrying, "email-service", "FAILED"), (known.dead, "email-service", "FAILED")]


ANSWERS = {
    "is it paused": (EMAIL_STATUS, _is(("ACTIVE",))),
    "where does it start": (EMAIL_START, _has_started),
    "has it processed them": (EMAIL_PROCESSED, _is((13,))),
    "what is not completed": (NOT_COMPLETED, _failed),
    "does cleanup run": (CLEANUP, _is((0,))),
    "how long are they kept": (RETENTION, _is(("orders.events", 36))),
    "when did it beat": (EMAIL_HEARTBEAT, _has_beaten),
    "who is active": (ACTIVE_COUNT, _is((1,))),
    "in which state is each": (
        GROUP_STATES,
        _is(("email-service", "ACTIVE"), ("analytics-service", "PAUSED"), ("inventory-service", "DEAD")),
    ),
    "consumer lag": (LAG, _is(("orders.events", "email-service", 2, 13, 2))),
    "subscription health": (HEALTH, _all_are_shown),
    "completion rate": (COMPLETION, _rates),
    "zero subscriptions": (ZERO_SUBSCRIPTIONS, _nobody_wanted),
    "do all receive": (
        RECEIVING,
        _is(("email-service", 15), ("analytics-service", 10), ("inventory-service", 10)),
    ),
    "who is near its timeout": (NEAR_TIMEOUT, _is()),
    "what is stuck": (STUCK, _is()),
    "how far are backfills": (BACKFILL, _is()),
    # One to be retried, five and two not completed by all groups, and the first: for two groups or none, never for one.
    "what is inconsistent": (INCONSISTENT, _is(("orders.events", 9))),
    "what is orphaned": (ORPHANED, _is()),
}


async def ask(conn: Any, question: str) -> list[Any]:
    await conn.execute("set search_path = postbus_outbox")
    return [tuple(row.values()) for row in await conn.fetch(question)]


async def test_every_question_has_its_true_answer(conn: Any, history: History) -> None:
    """Each question is asked as written, and all wrong answers are reported together."""
    wrong = {}
    for name, (question, is_true) in ANSWERS.items():
        rows = await ask(conn, question)
        try:
            is_true(rows, history)
        except AssertionError as error:
            wrong[name] = f"{rows}: {error}"
    assert not wrong


async def test_failed_delivery_has_its_error_and_attempts(conn: Any, history: History) -> None:
    """A message that was given up counts as processed; one that waits for a retry does not yet."""
    rows = await ask(
        conn,
        "select message_id, substring(error_message from '[^\n]+\n?$'), retry_count, processed_at is not null "
        "from outbox_consumer_groups "
        "where status = 'FAILED' order by message_id",
    )
    assert rows == [
        (history.dead, "never", 0, True),
        (history.retrying, "ValueError: no such address\n", 1, False),
    ]
    states = await ask(
        conn, f"select status from outbox where id in ({history.dead}, {history.retrying}) and topic = 'orders.events'"
    )
    assert states == [("FAILED",), ("PROCESSING",)]
    ids = await ask(conn, "select count(*), count(distinct id), count(processed_at) from outbox_consumer_groups")
    assert ids == [(35, 35, 34)]


async def test_blocked_topic_is_explained(bus: Bus, conn: Any, history: History) -> None:
    """Writes are refused while all groups are PAUSED or DEAD, and the questions say why."""
    await bus.admin.set_topic("orders.events", block_writes_on_zero_subscriptions=True)
    await bus.admin.pause_group("orders.events", "email-service")
    with pytest.raises(NoActiveSubscriptions):
        await bus.send("orders.events", 17)
    assert await ask(conn, ACTIVE_COUNT) == [(0,)]
    assert await ask(conn, EMAIL_STATUS) == [("PAUSED",)]
    assert dict(await ask(conn, GROUP_STATES))["inventory-service"] == "DEAD"
    assert await ask(conn, "select topic from outbox_topics where block_writes_on_zero_subscriptions") == [
        ("orders.events",)
    ]


async def test_silent_groups_and_old_messages_are_found(conn: Any, history: History) -> None:
    """A group near its heartbeat timeout and topics with messages older than an hour are reported."""
    await conn.execute(
        "update postbus.subscription set seen_at = clock_timestamp() - interval '250 seconds' where state = 'ACTIVE'"
    )
    [(topic, group, silent, timeout)] = await ask(conn, NEAR_TIMEOUT)
    assert (topic, group, timeout) == ("orders.events", "email-service", 300)
    assert 250 <= silent < 290
    await conn.execute("update postbus.segment set published_at = published_at - interval '2 hours'")
    assert await ask(conn, STUCK) == []
    [(topic, count, _, hours)] = await ask(conn, re.sub(r"> 100", "> 5", STUCK))
    assert (topic, count) == ("orders.events", 8)
    assert 2 <= hours < 2.1


async def test_cleanup_removes_what_nobody_needs(bus: Bus, conn: Any) -> None:
    """It removes expired messages of logs and finished ones of queues, and returns how many."""
    await bus.admin.create_topic("orders.events", semantics="PUB_SUB", retention="0", zero_subscription_retention="0")
    await bus.admin.create_topic("jobs", retention="1h")
    for n in range(7):
        await bus.send("orders.events", n)
    storage = await conn.fetchval("select storage_id from postbus.topic where name = 'orders.events'")
    await rotate(conn, storage)
    await bus.send("orders.events", "in the next partition")
    await sweep(conn, storage)
    gone = 0

    async def all_are_gone() -> None:  # transactions of others may hold it up
        nonlocal gone
        [(count,)] = await ask(conn, CLEANUP)
        gone += count
        assert gone == 7

    await eventually(all_are_gone)
    assert await ask(conn, "select topic, status from outbox") == [("orders.events", "PENDING")]
    await bus.send("jobs", 1)
    row = await conn.fetchrow("select * from postbus.claim('jobs', 'm', 10)")
    await conn.execute("select postbus.ack_leases(array[$1::uuid])", row["token"])
    await conn.execute("update postbus.finished set finished_at = finished_at - interval '2 hours'")
    assert await ask(conn, CLEANUP) == [(1,)]


async def test_queued_messages_have_the_status_of_their_stage(conn: Any) -> None:
    """Waiting and retried messages are PENDING, and a leased one is PROCESSING."""
    await conn.execute("select postbus.publish('jobs', payload) from (values ('1'::text), ('2'), ('3')) as p (payload)")
    row = await conn.fetchrow("select * from postbus.claim('jobs', 'm', 2)")
    await conn.execute("select postbus.retry($1, array[$2::bigint], '1 hour'::interval)", row["token"], row["ids"][0])
    found = await ask(
        conn, "select status, retry_count, required_consumer_groups, completed_consumer_groups from outbox order by id"
    )
    assert found == [("PENDING", 1, 1, 0), ("PROCESSING", 0, 1, 0), ("PENDING", 0, 1, 0)]


@pytest.mark.parametrize("start", ["FROM_NOW", "FROM_TIMESTAMP", "FROM_MESSAGE_ID", "seek", "bounded", "watermark"])
async def test_skipped_messages_are_no_lag(bus: Bus, conn: Any, start: str) -> None:
    """Wherever the group started or was moved to, two of five messages are before it."""
    tracking: Tracking = "OFFSET_WATERMARK" if start == "watermark" else "REFERENCE_COUNTING"
    await bus.admin.create_topic("orders.events", semantics="PUB_SUB", tracking=tracking)
    for n in range(3):
        await bus.send("orders.events", n)
    middle = await conn.fetchval("select clock_timestamp()")
    if start in ("FROM_NOW", "watermark"):
        await conn.execute("select postbus.subscribe('orders.events', 'email-service')")
    elif start == "seek":
        await conn.execute("select postbus.subscribe('orders.events', 'email-service', 'FROM_BEGINNING')")
        await conn.execute("select postbus.seek('orders.events', 'email-service', 'FROM_NOW')")
    ids = [await bus.send("orders.events", n) for n in range(2)]
    if start == "FROM_TIMESTAMP":
        await conn.execute(
            "select postbus.subscribe('orders.events', 'email-service', 'FROM_TIMESTAMP', start_at => $1)", middle
        )
    elif start == "FROM_MESSAGE_ID":
        await conn.execute(
            "select postbus.subscribe('orders.events', 'email-service', 'FROM_MESSAGE_ID', start_id => $1)", ids[0]
        )
    elif start == "bounded":
        await conn.execute(
            """select postbus.subscribe('orders.events', 'email-service', 'FROM_BEGINNING', catch_up => $1)""",
            '{"beside_from": 1, "max_messages": 2}',
        )
    assert await ask(conn, LAG) == [("orders.events", "email-service", 2, 0, 0)]
    [(_, at)] = await ask(conn, EMAIL_START)
    assert at == (middle if start == "FROM_TIMESTAMP" else None)
    if start == "bounded":
        [row] = await ask(conn, BACKFILL)
        assert row[:6] == ("orders.events", "email-service", "IN_PROGRESS", 0, 2, 0)
