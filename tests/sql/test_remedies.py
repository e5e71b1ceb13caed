"""Remedies can be followed by a reader who has only the text of the error."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from support.log_sql import create_topic, publish_many, refused, subscribe
from support.pop_sql import pop


async def test_popping_a_topic_without_a_group_names_the_option(conn: Any) -> None:
    """The remedy says how to name a group in each of the interfaces."""
    await create_topic(conn)

    remedy = await refused(pop(conn, group=None), "PB432")

    assert all(word in remedy for word in ("group=NAME", "--group", '"group"', "group_name"))


async def test_popping_a_queue_for_a_group_names_both_remedies(conn: Any) -> None:
    """An existing topic keeps its messages when it becomes PUB_SUB; a missing one is created."""
    await publish_many(conn, "one", topic="q")
    before = await refused(pop(conn, topic="q"), "PB432")
    await conn.execute("select postbus.ensure_topic('q')")

    remedy = await refused(pop(conn, topic="q"), "PB432")
    assert before == remedy
    of_new = await refused(pop(conn, topic="new"), "PB432")

    assert "leave the group out" in remedy
    assert "postbus topics migrate q --to PUB_SUB --group g" in remedy
    assert "postbus topics create new --semantics PUB_SUB" in of_new


async def test_queue_with_messages_is_made_pub_sub_by_migrate(conn: Any) -> None:
    """The error for the option never suggests dropping messages."""
    await conn.execute("select postbus.create_topic('q', '{}')")
    await publish_many(conn, "one", topic="q")

    remedy = await refused(conn.execute("""select postbus.set_topic('q', '{"semantics": "PUB_SUB"}')"""), "PB408")

    assert remedy == "move them to groups: postbus topics migrate q --to PUB_SUB --group GROUP"


async def test_pub_sub_topic_cannot_become_a_queue(conn: Any) -> None:
    """With messages or without, the remedy loses none."""
    await create_topic(conn)
    to_queue = """select postbus.set_topic('t', '{"semantics": "QUEUE"}')"""
    assert "another name" in await refused(conn.execute(to_queue), "PB408")
    await publish_many(conn, "one")

    assert "another name" in await refused(conn.execute(to_queue), "PB408")


async def test_unknown_group_error_names_the_subscribe_command(conn: Any) -> None:
    """A pop by SQL does not subscribe, so the remedy names the command."""
    await create_topic(conn)
    await subscribe(conn)

    assert "postbus groups subscribe other t" in await refused(pop(conn, group="other"), "PB406")


async def test_blocked_publisher_error_names_the_remedy(conn: Any) -> None:
    """An existing PAUSED group has to be resumed, because subscribing leaves it PAUSED."""
    await create_topic(conn, block_writes_on_zero_subscriptions=True)
    assert "postbus groups subscribe GROUP t" in await refused(publish_many(conn, "one"), "PB430")
    group = await subscribe(conn)
    await publish_many(conn, "one")

    await conn.execute("select postbus.set_group_state('t', 'g', 'PAUSED')")
    assert "postbus groups resume t g" in await refused(publish_many(conn, "two"), "PB430")
    await conn.execute("update postbus.subscription set state = 'DEAD' where id = $1", group)
    remedy = await refused(publish_many(conn, "two"), "PB430")

    assert "postbus groups resurrect t g" in remedy
    assert "postbus topics set t --no-block-writes-on-zero-subscriptions" in remedy


async def test_missing_topic_is_not_called_a_queue(conn: Any) -> None:
    """A caller who mistyped the name learns that there is no such topic."""
    with pytest.raises(asyncpg.PostgresError, match="there is no topic 'new', and publishing to it"):
        await pop(conn, topic="new")


async def test_webhook_with_a_group_on_a_queue_names_both_remedies(conn: Any) -> None:
    """The topic exists, so the remedy does not suggest creating it."""
    await conn.execute("select postbus.create_topic('q', '{}')")
    create = "select postbus.create_webhook('w', 'q', 'https://example.org/', '0123456789abcdef', 'g')"

    remedy = await refused(conn.execute(create), "PB432")

    assert "leave the group out" in remedy
    assert "postbus topics migrate q --to PUB_SUB --group g" in remedy


async def test_force_complete_on_a_queue_warns_what_a_purge_deletes(conn: Any) -> None:
    """A purge deletes more than force-complete was asked for."""
    await conn.execute("select postbus.create_topic('q', '{}')")

    remedy = await refused(conn.execute("select postbus.force_complete('q', '7 days')"), "PB432")

    assert "delete all its waiting messages, whatever their age: postbus topics purge q" in remedy


async def test_retention_error_names_days_and_direction(conn: Any) -> None:
    """The error says which value to change and in which direction."""
    remedy = await refused(create_topic(conn, retention="60d"), "PB402")

    assert "max_retention (30 days) is at least the longer of retention (60 days)" in remedy
    assert "raise it, or lower the others" in remedy


async def test_unknown_scope_error_lists_the_groups_scopes(conn: Any) -> None:
    """The command in the remedy is for this group."""
    remedy = await refused(conn.execute("select postbus.forget_scope('g', namespace => 'n')"), "PB406")

    assert remedy == "list its scopes: postbus groups scopes g"


async def test_bad_default_for_new_topics_names_no_topic(conn: Any) -> None:
    """The error speaks of new topics, and names the value that it is compared with."""
    with pytest.raises(asyncpg.PostgresError, match="bad option of new topics") as failed:
        await conn.execute("""select postbus.set_sweeping('{"heartbeat_timeout": "1s"}')""")
    assert "heartbeat_interval (00:01:00)" in str(failed.value)
