"""Databases of earlier versions: what `postbus migrate --print` gave then, brought up to date."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from migration.released_sql import advance, pass_all, put_off
from migration.test_migrate import everything
from postbus import Bus, Start
from postbus._db.migrator import migrate
from support.eventually import eventually
from support.grouping import collect, has
from support.log_sql import (
    create_topic,
    publish_many,
    read,
    settle_retrying,
    subscribe,
    take,
)
from support.running import running

_RELEASED = Path(__file__).parent / "released"
RELEASED = sorted(_RELEASED.glob("*.sql.gz"))


async def installed(dsn: str, released: Path) -> Any:
    """A connection to a database that has the schema of that time."""
    conn: Any = await asyncpg.connect(dsn)
    await conn.execute(gzip.decompress(released.read_bytes()).decode())
    return conn


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.name)
async def test_an_upgrade_ends_with_the_schema_of_a_new_database(empty_dsn: str, dsn: str, released: Path) -> None:
    """With nothing left of functions, views or columns that are no more."""
    old: Any = await installed(empty_dsn, released)
    new: Any = await asyncpg.connect(dsn)
    try:
        await migrate(old)
        assert await everything(old) == await everything(new)
    finally:
        await old.close()
        await new.close()


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.name)
async def test_a_queue_survives_an_upgrade(empty_dsn: str, released: Path) -> None:
    """From each release: what waited and what was delayed is handled."""
    conn = await installed(empty_dsn, released)
    await conn.execute("select postbus.publish('q', '1'::jsonb), postbus.publish('q', '2'::jsonb, delay => '1 ms')")
    await migrate(conn)
    await conn.close()
    got: list[int] = []
    async with Bus.open(empty_dsn) as bus:

        @bus.subscribe("q")
        async def handle(n: int) -> None:
            got.append(n)

        async with running(bus):
            await has(got, 2)
    assert sorted(got) == [1, 2]


@pytest.mark.parametrize(("released", "tracking"), [("0003", "OFFSET_WATERMARK"), ("0004", "REFERENCE_COUNTING")])
async def test_groups_survive_an_upgrade(empty_dsn: str, released: str, tracking: str) -> None:
    """Each goes on at its place, in the middle of a segment too, with what is to be tried again and what is dead."""
    conn = await installed(empty_dsn, _RELEASED / f"{released}.sql.gz")
    options = json.dumps({"semantics": "PUB_SUB", "lanes": 1, "retry_initial": "0 s", "retry_max": "0 s"})
    await conn.execute("select postbus.create_topic('t', $1)", options)
    for group in ("begins", "half-way"):
        await conn.execute("select postbus.subscribe('t', $1, 'FROM_BEGINNING')", group)
    await conn.execute(
        "select postbus.publish_many('t', array['0', '1', '2', '3']::bytea[], content_type => $1)", "application/json"
    )
    half = await conn.fetchval("select id from postbus.subscription where group_name = 'half-way'")
    await conn.execute("select postbus.heartbeat('old', 'host', 1, '{}')")
    lane = await conn.fetchrow("select * from postbus.lease_lanes('old', array[$1::bigint], '{}')", half)
    rows = await conn.fetch("select * from postbus.read_log('t', '{0}', $1)", lane["cursor"])
    await conn.execute(
        "select postbus.advance(array[$1::bigint], '{0}', array[$2::bigint], array[$3], array[$4::bigint], "
        "done_indexes => '{1}', passed => '{2}')",
        half, lane["number"], rows[-1]["during_cursor"], rows[0]["position"],
    )  # fmt: skip
    await conn.execute("select postbus.sign_off('old')")

    await migrate(conn)
    known = await conn.fetch(
        "select s.group_name, c.handed_out from postbus.current_cursor c "
        "join postbus.subscription s on s.id = c.subscription_id"
    )
    assert dict(known) == {"begins": 0, "half-way": rows[0]["position"] & (1 << 43) - 1}, "which a rebase goes by"
    async with Bus.open(empty_dsn) as bus:
        assert (await bus.admin.topic("t"))["tracking"] == tracking, "as it was"
        got = {name: collect(bus, name, start=Start.BEGINNING) for name in ("begins", "half-way", "new")}
        async with running(bus):
            await has(got["new"], 4)
            await bus.send("t", 4)

            async def all_have_come() -> None:
                assert {name: sorted(numbers) for name, numbers in got.items()} == {
                    "begins": [0, 1, 2, 3, 4], "half-way": [2, 3, 4], "new": [0, 1, 2, 3, 4],
                }  # fmt: skip

            await eventually(all_have_come)
        await bus.admin.set_topic("t", tracking="REFERENCE_COUNTING")
        for storage in await conn.fetch("select id from postbus.storage"):
            await conn.execute("select postbus.sweep_log($1)", storage["id"])
    await conn.close()


@pytest.mark.parametrize("tracking", ["OFFSET_WATERMARK", "REFERENCE_COUNTING"])
async def test_what_was_completed_stays_completed_in_an_upgrade(empty_dsn: str, tracking: str) -> None:
    """Groups that had come late were not required for it, and do not become so."""
    conn = await installed(empty_dsn, _RELEASED / "0012.sql.gz")
    await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    await publish_many(conn, "completed")
    await pass_all(conn, group)
    for late in ("late", "later"):
        await subscribe(conn, late, "FROM_BEGINNING")
        await publish_many(conn, f"for {late}")
    await pass_all(conn, group)
    states = "select status from postbus.message_states order by id"
    expected = ["COMPLETED", "PROCESSING", "PROCESSING"]
    assert [row["status"] for row in await conn.fetch(states)] == expected

    await migrate(conn)
    rows = await conn.fetch("select required, status from postbus.message_states order by id")
    assert [tuple(row) for row in rows] == [
        (["g"], "COMPLETED"),
        (["g", "late", "later"], "PROCESSING"),
        (["g", "late", "later"], "PROCESSING"),
    ]
    await conn.close()


@pytest.mark.parametrize("tracking", ["OFFSET_WATERMARK", "REFERENCE_COUNTING"])
async def test_what_was_done_ahead_before_an_upgrade_is_not_delivered_again(empty_dsn: str, tracking: str) -> None:
    """It had been put off and done, or given up, before the group's place was past it, in segments beside others."""
    conn = await installed(empty_dsn, _RELEASED / "0012.sql.gz")
    await create_topic(conn, tracking=tracking, retry_initial="0 s", retry_max="0 s")
    group = await subscribe(conn, "g")
    await publish_many(conn, "0", "1", content_type="application/json")
    ids = [
        id
        for numbers in (["2", "3", "4"], ["5", "6", "7"])
        for id in await publish_many(conn, *numbers, content_type="application/json")
    ]
    [lane] = await take(conn, "w", group)
    piece = await read(conn, lane.cursor)
    assert piece.during is not None
    await put_off(conn, lane, piece.after(3), "retry", "dead", "retry", "retry", "retry")
    await conn.execute("select postbus.claim_retrying(array[$1::uuid], 10)", lane.token)
    assert await settle_retrying(conn, lane, [ids[n] for n in (1, 4, 5)], "done") == ["done"] * 3
    assert await settle_retrying(conn, lane, [ids[3]], "retry") == ["retried"]
    await advance(conn, [lane], (await read(conn, lane.cursor, 2)).during or "", 2, done=piece.places[1])
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)
    ahead = "select count(*) from postbus.settled_ahead"
    assert await conn.fetchval(ahead) == 4

    await migrate(conn)
    states = "select status from postbus.message_states order by id"
    statuses = [row["status"] for row in await conn.fetch(states)]
    assert statuses == ["COMPLETED"] * 2 + ["PENDING", "COMPLETED", "FAILED", "PROCESSING", "COMPLETED", "COMPLETED"]
    async with Bus.open(empty_dsn) as bus:
        got = collect(bus, "g", start=Start.BEGINNING)
        async with running(bus):
            await has(got, 2)
            await bus.send("t", 8)
            await has(got, 3)
    assert sorted(got) == [2, 5, 8]
    statuses = [row["status"] for row in await conn.fetch(states)]
    assert statuses == ["COMPLETED"] * 4 + ["FAILED"] + ["COMPLETED"] * 4
    await conn.close()
