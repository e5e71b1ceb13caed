"""The audit log: each action leaves one entry, and nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.audited import ACTS, UNCHANGED, Act, make_world, role_of

_ENTRIES = """
    select action, topic, group_name, target, affected, given, before, after, login, role, actor
      from postbus.audit where id > $1 order by id
"""


async def entries_of(conn: Any, *statements: str) -> list[dict[str, Any]]:
    """Return the audit entries that statements leave. The statements are rolled back."""
    before = await conn.fetchval("select coalesce(max(id), 0) from postbus.audit_entry")
    transaction = conn.transaction()
    await transaction.start()
    try:
        for statement in statements:
            await conn.fetch(statement)
        rows = [dict(row) for row in await conn.fetch(_ENTRIES, before)]
    finally:
        await transaction.rollback()
    return [row | {name: json.loads(row[name] or "null") for name in ("given", "before", "after")} for row in rows]


async def test_each_action_leaves_one_entry(conn: Any) -> None:
    """The entry names the action, its target, the number of rows affected, and the state before and after."""
    await make_world(conn)
    login = await conn.fetchval("select session_user")
    for act in ACTS:
        [entry] = await entries_of(conn, act.sql)
        for name in ("action", "topic", "group_name", "target", "affected"):
            assert entry[name] == getattr(act, name), (act.sql, entry)
        for name in ("given", "before", "after"):
            assert getattr(act, name) in (None, entry[name]), (act.sql, entry)
        assert (entry["login"], entry["role"], entry["actor"]) == (login, None, None)


async def test_statement_that_changes_nothing_leaves_no_entry(conn: Any) -> None:
    """Dry runs, repeated state changes and background work are not audited."""
    await make_world(conn)
    for statement in UNCHANGED:
        assert await entries_of(conn, statement) == [], statement


@pytest.mark.parametrize("act", [one for one in ACTS if one.function in ("seek", "purge_topic", "create_token")])
async def test_rolled_back_action_leaves_no_entry(conn: Any, act: Act) -> None:
    """An entry exists only if its action was committed."""
    await make_world(conn)
    before = await conn.fetchval("select count(*) from postbus.audit")

    assert await entries_of(conn, act.sql)

    assert await conn.fetchval("select count(*) from postbus.audit") == before


async def test_removing_a_group_in_use_leaves_one_pause_and_one_removal_entry(conn: Any) -> None:
    """Repeating the request until the group is gone leaves no further entries."""
    await make_world(conn)
    await conn.execute("select postbus.heartbeat('w', 'host', 1, '{}')")
    await conn.execute(
        "select postbus.lease_lanes('w', array[(select id from postbus.subscription where group_name = 'g')], '{}')"
    )
    remove = "select postbus.remove_group('log', 'g')"

    told = await entries_of(conn, remove, remove, remove, "select postbus.remove_group('log', 'g', force => true)")

    assert [one["action"] for one in told] == ["group.pause", "group.remove"]
    assert told[0]["given"] == {"to": "remove"}
    assert told[1]["before"] == {"dead_letters": 1, "deferred": 0}


async def test_seek_entry_records_the_position_before(conn: Any) -> None:
    """The entry holds the earlier position, so an operator can undo a seek."""
    await make_world(conn)
    ids = [row["id"] for row in await conn.fetch("select id from postbus.log order by id")]
    to_last = "select postbus.seek('log', 'g', 'FROM_MESSAGE_ID', start_id => $1)"
    for seek in (to_last.replace("$1", str(ids[-1])), "select postbus.seek('log', 'g', 'FROM_NOW')"):
        await conn.execute(seek)

    [told] = await entries_of(conn, to_last.replace("$1", str(ids[0])))

    assert (told["affected"], told["after"]["start_id"]) == (len(ids), ids[0])
    assert told["before"]["lowest_id"] == told["before"]["highest_id"] >= ids[-1] // 1024 * 1024, "it had read all"


async def test_migration_is_audited(conn: Any) -> None:
    """The first migration, which creates the schema, has an entry too."""
    row = await conn.fetchrow("select action, before, after from postbus.audit order by id limit 1")
    assert (row["action"], row["before"]) == ("schema.migrate", None)
    assert json.loads(row["after"])["migration"] == await conn.fetchval("select max(number) from postbus.migration")


async def test_entries_are_removed_after_audit_retention(conn: Any) -> None:
    """The sweep removes expired entries in batches, the oldest first."""
    await conn.execute(
        "insert into postbus.audit_entry (at, login, action) "
        "select now() - n * interval '1 day', 'x', n::text from generate_series(85, 94) n"
    )

    async def left() -> list[str]:
        return [row[0] for row in await conn.fetch("select action from postbus.audit where login = 'x' order by at")]

    assert await conn.fetchval("select more from postbus.sweep(2)") is True
    assert await left() == [str(n) for n in range(92, 84, -1)]
    await conn.execute("select postbus.sweep()")
    assert await left() == ["89", "88", "87", "86", "85"]
    await conn.execute('select postbus.set_sweeping(\'{"audit_retention": "87 days"}\')')
    await conn.execute("select postbus.sweep()")
    assert await left() == ["86", "85"]


async def test_entry_shows_the_assumed_role_beside_the_login(conn: Any) -> None:
    """The entry also shows the actor and the program's name if the session gives them."""
    admin = await role_of(conn, "admin")
    await conn.execute(f"set application_name = 'the shop'; set postbus.actor = 'alice'; set role \"{admin}\"")
    await conn.execute("select postbus.create_topic('t')")
    row = await conn.fetchrow("select login, role, actor, program from postbus.audit order by id desc limit 1")
    await conn.execute("reset role")
    assert tuple(row) == (await conn.fetchval("select session_user"), admin, "alice", "the shop")
