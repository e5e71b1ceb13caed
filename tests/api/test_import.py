"""Importing from another outbox: groups get the messages they had not completed, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from postbus import (
    Bus,
    InvalidGroup,
    Message,
    PostbusError,
)
from support.fix_database import Connect
from support.grouping import has, is_through
from support.old_outbox import (
    FAN_OUT,
    OFFSETS,
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

EMAIL_DONE = set(range(1, 41)) - {7, 8, 12, 23}
ANALYTICS_DONE = set(range(1, 13))
ALL = set(range(1, 61))
NEEDED = {"email": ALL - EMAIL_DONE, "analytics": ALL - ANALYTICS_DONE, "stock": ALL - {60}}


@pytest.fixture
async def outbox(conn: Any) -> Any:
    """Set up three groups of a topic at different positions, with holes; one of them tried a message three times."""
    await conn.execute(FAN_OUT)
    await add_topic(conn, email="ACTIVE", analytics="ACTIVE", stock="ACTIVE", old="CANCELLED", lost="DEAD")
    await add_messages(conn, ALL)
    await finish(conn, "email", EMAIL_DONE)
    await fail(conn, "email", 8, 3)
    await finish(conn, "analytics", ANALYTICS_DONE)
    await finish(conn, "stock", [60])
    return conn


async def consume(dsn: str, conn: Any, *groups: str, topic: str = "t") -> dict[str, list[Message]]:
    """Let groups work until they have handled everything."""
    async with Bus.open(dsn) as bus:
        got = {group: listen(bus, group, topic) for group in groups}
        async with running(bus):
            for group in groups:
                await is_through(conn, group, topic)
    return got


async def test_groups_get_exactly_what_they_had_not_completed(bus: Bus, dsn: str, outbox: Any) -> None:
    """No message is missing or repeated, each key is in order, with headers, correlation ids and attempts."""
    result = await bus.admin.import_outbox()

    got = await consume(dsn, outbox, *NEEDED)
    for group, expected in NEEDED.items():
        check(got[group], expected)
        assert groups_of(result)[group].messages == len(expected)
    first = got["stock"][0]
    assert (first.headers["tenant"], first.headers["try"]) == ("acme", "1")
    assert first.correlation_id == f"c{numbers([first])[0]}"
    assert {numbers([one])[0]: one.attempt for one in got["email"] if one.attempt > 1}[8] == 4
    assert {group.group_name for group in await bus.admin.groups("t")} == set(NEEDED)
    assert any("lost of t is DEAD" in note for note in result.notes)
    assert (result.layout, result.messages) == ("fan-out", 60)


async def test_only_messages_before_a_groups_position_are_copied(bus: Bus, outbox: Any) -> None:
    """Other messages that a group needs are in the log once, for all groups."""
    groups = groups_of(await bus.admin.import_outbox())

    assert groups["email"].deferred == 4
    assert groups["analytics"].deferred == 0
    assert groups["stock"].deferred == 59
    assert await outbox.fetchval("select count(*) from postbus.deferred") == 63
    assert await outbox.fetchval("select sum(count) from postbus.segment") == 60


async def test_second_run_does_nothing(bus: Bus, dsn: str, outbox: Any) -> None:
    """This holds at once, and after the groups have worked."""
    await bus.admin.import_outbox()
    before = await counts(outbox)
    again = await bus.admin.import_outbox()
    assert (again.messages, await counts(outbox)) == (0, before)
    assert {group.messages for group in groups_of(again).values()} == {0}

    await consume(dsn, outbox, *NEEDED)
    await bus.admin.import_outbox()

    assert all(not got for got in (await consume(dsn, outbox, *NEEDED)).values())


async def test_import_dry_run_changes_nothing(bus: Bus, outbox: Any) -> None:
    """It reports what a run would do."""
    before = await counts(outbox)

    planned = await bus.admin.import_outbox(dry_run=True)

    assert await counts(outbox) == before
    done = await bus.admin.import_outbox()
    assert (planned.dry_run, done.dry_run) == (True, False)
    assert planned.topics == done.topics


async def test_row_that_commits_late_comes_with_the_next_run(bus: Bus, dsn: str, outbox: Any, connect: Connect) -> None:
    """Its id is lower than imported ones, and the groups are already at work."""
    late = await connect()
    open_transaction = late.transaction()
    await open_transaction.start()
    await add_messages(late, [0], keys=5)
    await bus.admin.import_outbox()
    await consume(dsn, outbox, *NEEDED)
    await open_transaction.commit()
    await add_messages(outbox, [61])

    result = await bus.admin.import_outbox()

    assert result.messages == 2
    for got in (await consume(dsn, outbox, *NEEDED)).values():
        check(got, [0, 61])


@pytest.mark.parametrize("size", [7, 13, 100])
async def test_killed_import_is_completed_by_further_runs(
    bus: Bus, dsn: str, outbox: Any, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Whichever statement the server dies at, further runs bring the missing messages, and none twice."""
    monkeypatch.setattr("postbus._admin.outbox_import.runner._BATCH", size)
    kills = 0
    for nth in range(1, 100):
        await _die_at(outbox, nth)
        try:
            async with Bus.open(dsn) as dying:
                await dying.admin.import_outbox()
        except (PostbusError, asyncpg.PostgresError):
            kills += 1
            continue
        break
    await _die_at(outbox, 0)
    assert kills >= 5

    assert (await bus.admin.import_outbox()).messages == 0
    for group, got in (await consume(dsn, outbox, *NEEDED)).items():
        check(got, NEEDED[group])


async def _die_at(conn: Any, nth: int) -> None:
    """Make the nth mark, subscription or retry written from now on end its own server process."""
    await conn.execute(
        f"""
        create sequence if not exists written;
        alter sequence written restart;
        create or replace function die() returns trigger language plpgsql as $$
        begin
            if {nth} > 0 and nextval('public.written') = {nth} then
                perform pg_terminate_backend(pg_backend_pid());
            end if;
            return null;
        end $$;
        create or replace trigger die after insert on postbus.imported for each statement execute function die();
        create or replace trigger die after insert on postbus.subscription for each statement execute function die();
        create or replace trigger die after insert on postbus.deferred for each statement execute function die();
        create or replace trigger die after insert on postbus.imported_group for each statement execute function die();
        """
    )


async def test_group_may_work_during_the_import(bus: Bus, dsn: str, outbox: Any) -> None:
    """Consumers that wait for their group begin in the middle of the import, and get the same messages."""
    await bus.admin.create_topic("t", semantics="PUB_SUB")
    groups = [(group, listen(bus, group)) for group in NEEDED]
    async with Bus.open(dsn) as importer:
        await importer.admin.import_outbox()
        await add_messages(outbox, range(61, 200))
        async with running(bus):
            await importer.admin.import_outbox()
            for group, got in groups:
                await has(got, len(NEEDED[group]) + 139)
                await is_through(outbox, group)
    for group, got in groups:
        check(got, NEEDED[group] | set(range(61, 200)))


async def test_messages_completed_meanwhile_are_not_imported(bus: Bus, dsn: str, outbox: Any) -> None:
    """Old consumers went on after a first run: only groups that need a message get it."""
    await bus.admin.import_outbox()
    await add_messages(outbox, [61, 62])
    await finish(outbox, "email", [61])

    result = await bus.admin.import_outbox()

    assert {name: (one.messages, one.deferred) for name, one in groups_of(result).items()} == {
        "email": (1, 0),
        "analytics": (2, 1),
        "stock": (2, 1),
    }
    got = await consume(dsn, outbox, *NEEDED)
    assert sorted(numbers(got["email"])) == sorted(NEEDED["email"] | {62})
    assert sorted(numbers(got["stock"])) == sorted(NEEDED["stock"] | {61, 62})


async def test_group_activated_later_gets_its_messages(bus: Bus, dsn: str, outbox: Any) -> None:
    """A group made ACTIVE before a second run gets all messages it had not completed, also those others have had."""
    await finish(outbox, "lost", [1, 2, 3, 50])
    await bus.admin.import_outbox()
    await consume(dsn, outbox, *NEEDED)
    await outbox.execute(
        "update outbox_topic_subscriptions set subscription_status = 'ACTIVE' where group_name = 'lost'"
    )

    result = await bus.admin.import_outbox()

    assert groups_of(result)["lost"].messages == 56
    check((await consume(dsn, outbox, "lost"))["lost"], ALL - {1, 2, 3, 50})


async def test_group_cancelled_here_stays_cancelled(bus: Bus, dsn: str, outbox: Any) -> None:
    """A further run brings new messages to the others, and reports why not to this group."""
    await bus.admin.import_outbox()
    await bus.admin.cancel_group("t", "stock")
    await add_messages(outbox, [61, 62])
    await finish(outbox, "email", [61])

    result = await bus.admin.import_outbox()

    assert {name: one.messages for name, one in groups_of(result).items()} == {"email": 1, "analytics": 2}
    assert any("stock of t was cancelled here" in note for note in result.notes)
    got = await consume(dsn, outbox, "analytics")
    assert sorted(numbers(got["analytics"])) == sorted(NEEDED["analytics"] | {61, 62})


async def test_import_keeps_start_positions_and_paused_groups(bus: Bus, dsn: str, conn: Any) -> None:
    """A group gets nothing from before its start, and a PAUSED one gets everything when it is resumed."""
    await conn.execute(FAN_OUT)
    await add_topic(conn, byid="ACTIVE", attime="PAUSED", all="ACTIVE")
    await add_messages(conn, range(1, 11))
    await conn.execute("update outbox set created_at = now() - interval '1 hour' where id <= 4")
    await conn.execute(
        "update outbox_topic_subscriptions set start_from_message_id = 8 where group_name = 'byid';"
        "update outbox_topic_subscriptions set start_from_timestamp = now() - interval '1 minute' "
        "where group_name = 'attime'"
    )

    await bus.admin.import_outbox()

    assert (await bus.admin.group("t", "attime")).state == "PAUSED"
    await bus.admin.resume_group("t", "attime")
    got = await consume(dsn, conn, "byid", "attime", "all")
    check(got["byid"], range(8, 11))
    check(got["attime"], range(5, 11))
    check(got["all"], range(1, 11))


async def test_offsets_are_imported_instead_of_rows(bus: Bus, dsn: str, conn: Any, connect: Connect) -> None:
    """In the watermark layout a group has settled everything up to its offset, apart from later commits."""
    await conn.execute(FAN_OUT + OFFSETS)
    await add_topic(conn, fast="ACTIVE", slow="ACTIVE", fresh="ACTIVE")
    await conn.execute("update outbox_topics set completion_tracking_mode = 'OFFSET_WATERMARK'")
    await conn.execute(
        "insert into outbox_subscription_offsets (topic, group_name, last_processed_id) "
        "values ('t', 'fast', 18), ('t', 'slow', 6)"
    )
    await add_messages(conn, range(2, 21))
    late = await connect()
    open_transaction = late.transaction()
    await open_transaction.start()
    await add_messages(late, [1])
    await conn.execute("update outbox_subscription_offsets set last_processed_id = 3 where group_name = 'fresh'")
    await conn.execute(
        "insert into outbox_subscription_offsets (topic, group_name, last_processed_id) values ('t', 'fresh', 3)"
    )
    await bus.admin.import_outbox()
    await open_transaction.commit()

    again = await bus.admin.import_outbox()

    assert again.messages == 1
    got = await consume(dsn, conn, "fast", "slow", "fresh")
    assert sorted(numbers(got["fast"])) == [1, 19, 20]
    assert sorted(numbers(got["slow"])) == [1, *range(7, 21)]
    assert sorted(numbers(got["fresh"])) == [1, *range(4, 21)]
    assert (await bus.admin.import_outbox()).messages == 0


async def test_offsets_of_a_topic_with_receipts_are_ignored(bus: Bus, dsn: str, outbox: Any) -> None:
    """A table of offsets says nothing about holes if the topic counts references."""
    await outbox.execute(OFFSETS)
    await outbox.execute(
        "insert into outbox_subscription_offsets (topic, group_name, last_processed_id) values ('t', 'email', 40)"
    )

    await bus.admin.import_outbox()

    check((await consume(dsn, outbox, "email"))["email"], NEEDED["email"])


async def test_messages_without_any_group_are_imported(bus: Bus, dsn: str, conn: Any) -> None:
    """Messages kept while nobody was subscribed are in the log for later groups."""
    await conn.execute(FAN_OUT)
    await add_topic(conn)
    await add_messages(conn, range(1, 6), keys=0)

    result = await bus.admin.import_outbox()

    assert (result.topics[0].messages, result.topics[0].groups) == (5, ())
    logged = await bus.admin.log("t")
    assert sorted(json.loads(one.payload)["n"] for one in logged) == [1, 2, 3, 4, 5]


async def test_messages_from_before_there_were_groups_are_imported(bus: Bus, dsn: str, conn: Any) -> None:
    """They are in the log while they are kept, and no group that began later gets them."""
    await conn.execute(FAN_OUT)
    await add_topic(conn, late="ACTIVE")
    await add_messages(conn, range(1, 9))
    await conn.execute("update outbox_topic_subscriptions set start_from_message_id = 4")
    await conn.execute("update outbox set required_consumer_groups = 0 where id in (2, 3)")

    result = await bus.admin.import_outbox()

    assert (result.messages, groups_of(result)["late"].messages) == (7, 5)
    check((await consume(dsn, conn, "late"))["late"], range(4, 9))
    logged = [json.loads(one.payload)["n"] for one in await bus.admin.log("t")]
    assert sorted(logged) == [2, 3, 4, 5, 6, 7, 8]


async def test_topic_that_blocks_writes_is_imported(bus: Bus, dsn: str, outbox: Any) -> None:
    """Having no ACTIVE group during the import does not matter, because its groups come along."""
    await outbox.execute("update outbox_topics set block_writes_on_zero_subscriptions = true")

    await bus.admin.import_outbox()

    check((await consume(dsn, outbox, "email"))["email"], NEEDED["email"])


async def test_rows_that_cannot_be_imported_are_reported(bus: Bus, dsn: str, outbox: Any) -> None:
    """A payload that is too large stays in the old table, and comes once the topic accepts it."""
    await outbox.execute(
        "update outbox set payload = jsonb_build_object('n', id, 'x', repeat('x', 2000)) where id in (23, 50)"
    )
    await outbox.execute("update outbox set headers = '[1]' where id = 51")
    await add_messages(outbox, [70], "bad name")

    result = await bus.admin.import_outbox(options={"max_payload_bytes": 1000})

    told = {(one.topic, one.id): one.problem for one in result.not_imported}
    assert set(told) == {("t", "23"), ("t", "50"), ("t", "51"), ("bad name", None)}
    assert "bytes, the topic accepts 1000" in told["t", "50"]
    assert result.messages == 57
    first = await consume(dsn, outbox, *NEEDED)
    await bus.admin.set_topic("t", max_payload_bytes=100_000)
    await outbox.execute("update outbox set headers = null where id = 51")

    again = await bus.admin.import_outbox()

    assert (again.messages, [one.topic for one in again.not_imported]) == (3, ["bad name"])
    second = await consume(dsn, outbox, *NEEDED)
    for group, expected in NEEDED.items():
        assert sorted(numbers([*first[group], *second[group]])) == sorted(expected)


async def test_group_subscribed_before_the_import_is_refused(bus: Bus, outbox: Any) -> None:
    """Its position does not come from the import; when it is cancelled, the import continues."""
    await bus.admin.create_topic("t", semantics="PUB_SUB")
    await outbox.fetchrow("select * from postbus.subscribe('t', 'email')")

    with pytest.raises(InvalidGroup, match="postbus groups cancel t email"):
        await bus.admin.import_outbox()

    await bus.admin.cancel_group("t", "email")
    assert groups_of(await bus.admin.import_outbox())["email"].messages == len(NEEDED["email"])
