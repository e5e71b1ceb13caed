"""Roles: what each may do, what it may not, and that planted objects fool nobody."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postbus import Bus
from support.eventually import eventually
from support.grouping import has
from support.log_sql import (
    advance,
    claim_deferred,
    create_topic,
    defer,
    read,
    settle_deferred,
    subscribe,
    sweep,
    take,
)
from support.queue_sql import claim, payloads, publish
from support.running import running

AsRole = Callable[[str], Awaitable[Any]]
Roles = Callable[[str], str]


@pytest.fixture
async def as_role(conn: Any, dsn: str, roles: Roles) -> AsyncIterator[AsRole]:
    """Connect users that have one role of ours each."""
    users, connections = [], []

    async def connect(role: str) -> Any:
        user = f"user_{secrets.token_hex(6)}"
        names = ", ".join(map(roles, role.split(", "))) if role else ""
        await conn.execute(f"create role {user} login {f'in role {names}' if names else ''}")
        users.append(user)
        connection: Any = await asyncpg.connect(dsn, user=user)
        connections.append(connection)
        return connection

    yield connect
    for connection in connections:
        await connection.close()
    for user in users:
        await conn.execute(f"drop owned by {user} cascade")
        await conn.execute(f"drop role {user}")


_PUBLISH = "select postbus.publish('t', 'x'::text)"
_PUBLISH_MANY = "select postbus.publish_many('t', array['x'::bytea])"
_PUBLISHING = [
    _PUBLISH,
    _PUBLISH_MANY,
    "select postbus.publish('log', 'x'::text, key => 'k', dedup_key => 'd')",
    "select postbus.publish('log', '{}'::jsonb)",
    "select postbus.publish_many('log', array['x'::bytea], keys => array['k'])",
    "select postbus.publish_lines('log', '1\n2', 2)",
    "select postbus.publish_lines('new', '1\n2', 2)",
]
_CLAIM = "select * from postbus.claim('t', 'm', 1)"
_SETTLE = [
    "select postbus.ack(gen_random_uuid(), array[1])",
    "select postbus.ack_leases(array[gen_random_uuid()])",
    "select * from postbus.retry(gen_random_uuid(), array[1])",
    "select postbus.dead_letter(gen_random_uuid(), array[1], 'no')",
    "select postbus.release(gen_random_uuid(), array[1])",
    "select postbus.extend(array[gen_random_uuid()], '1 min')",
    "select postbus.return_expired()",
    "select postbus.sweep()",
    "select postbus.heartbeat('n', 'h', 1, array['t'])",
]
_GROUPS = [
    "select * from postbus.subscribe('log', 'g')",
    "select * from postbus.subscribe_scope('g', pattern => '#')",
    "select * from postbus.group_topics('g', pattern => '#')",
    "select * from postbus.scope_news('{g}', '{log}', '{null}', '{null}', '{null}', '{null}', '{}')",
    "select postbus.keys_of(1)",
    "select * from postbus.pop_scope('g', pattern => '#')",
    "select * from postbus.read_log('log', '{0}', '(\"(1,3,3:3:)\",,,,,,,,)')",
    "select postbus.advance('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
    "select postbus.defer(1, 0, gen_random_uuid(), '{}', '{}', '{}', '{}', '{}', '{}')",
    "select * from postbus.claim_deferred('{}', 1)",
    "select * from postbus.deferred_of('{}')",
    "select postbus.settle_deferred(1, 0, gen_random_uuid(), '{}', 'done')",
    "select * from postbus.lease_lanes('w', '{}', '{}')",
    "select postbus.release_lanes('{}')",
    "select postbus.leave_groups('w', '{}')",
    "select postbus.hold_lane(gen_random_uuid())",
    "select postbus.clear_caution(gen_random_uuid())",
    "select postbus.group_heartbeat('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
    "select * from postbus.sweep_log(2)",
    "select postbus.storages()",
    "select postbus.sweep_subscriptions()",
    "select postbus.note_failure('sweep', 0, 'no')",
    "select postbus.inbox_once('c', 'm')",
    "select postbus.inbox_once_many('c', array['m'])",
    "select postbus.inbox_forget('c', 'm')",
]
_OPERATE_GROUPS = [
    "select postbus.pause_group('log', 'seen')",
    "select postbus.resume_group('log', 'seen')",
    "select postbus.set_scope_state('seen', 'PAUSED', topic => 'log')",
    "select postbus.set_scope_state('seen', 'ACTIVE', topic => 'log')",
    "select postbus.seek('log', 'seen', 'FROM_BEGINNING')",
    "select postbus.redrive('log', group_name => 'seen')",
    "select * from postbus.resurrect_group('log', 'seen')",
]
_OPERATE_TOPICS = [
    "select postbus.pause_topic('jobs')",
    "select postbus.resume_topic('jobs')",
    "select postbus.redrive('jobs')",
]
_GROUP_ADMIN = [
    "select * from postbus.subscribe('log', 'h')",
    "select * from postbus.subscribe_scope('h', topic => 'log')",
    "select postbus.set_scope_state('h', 'PAUSED', topic => 'log')",
    "select postbus.set_scope_state('h', 'ACTIVE', topic => 'log')",
    "select postbus.forget_scope('h', topic => 'log')",
    "select postbus.seek('log', 'h', 'FROM_BEGINNING')",
    "select postbus.redrive('log', group_name => 'h')",
    "select * from postbus.force_complete('log', '1 day')",
    "select postbus.set_group_state('log', 'h', 'CANCELLED')",
    "select * from postbus.remove_group('log', 'h')",
    "select postbus.rebase()",
]
_ADMIN = [
    "select postbus.create_topic('u')",
    "select postbus.set_topic('u', '{}')",
    "select postbus.pause_topic('u')",
    "select postbus.resume_topic('u')",
    "select postbus.purge_topic('u')",
    "select postbus.redrive('u')",
    "select postbus.purge_dead_letters('u')",
    "select postbus.move_topic('u')",
    "select postbus.continue_moves()",
    "select postbus.delete_topic('u')",
    "select postbus.set_sweeping('{}')",
    "select postbus.create_token('a', 'hash', 'shop', array['producer'])",
    "select postbus.revoke_token('a')",
    "select postbus.create_webhook('w', 'u', 'http://x', '0123456789abcdef')",
    "select postbus.set_webhook('w', enabled => false)",
    "select postbus.webhooks_to_run()",
    "select postbus.delete_webhook('w')",
    "select * from postbus.tokens",
    "select * from postbus.webhooks",
    "select postbus_outbox.cleanup_completed_outbox_messages()",
]
_VIEW_NAMES = (
    "topics",
    "messages",
    "dead_letters",
    "workers",
    "log",
    "groups",
    "members",
    "catch_ups",
    "sweep_jobs",
    "scopes",
    "inbox",
    "audit",
)
_LAG = "select * from postbus.group_lag(1)"
_LOOKS = [
    _LAG,
    "select * from postbus.group_metrics('log', 'seen')",
    "select * from postbus.deliveries_of('log', (select min(id) from postbus.log))",
    "select * from postbus.message_state('log', (select min(id) from postbus.log))",
    "select * from postbus.log_message('log', (select min(id) from postbus.log))",
    "select * from postbus.copies_of('log', 1)",
    "select * from postbus.groups_near_timeout()",
    "select * from postbus.stuck_messages()",
    "select * from postbus.zero_subscription_messages()",
    "select * from postbus.inconsistencies()",
    "select * from postbus.sweeping()",
    "select * from postbus.sweep_health()",
]
_OUTBOX_NAMES = ("outbox", "outbox_consumer_groups", "outbox_topics", "outbox_topic_subscriptions")
_VIEWS = [
    *(f"select count(*) from postbus.{view}" for view in _VIEW_NAMES),
    *(f"select * from postbus_outbox.{view}" for view in _OUTBOX_NAMES),
]
_TABLES = [
    "topic",
    "queued",
    "delayed",
    "lease",
    "dead_letter",
    "finished",
    "dedup",
    "busy_key",
    "worker",
    "crowded",
    "migration",
    "segment",
    "segment_2_1",
    "partition_topic",
    "partition_mark",
    "log_partition",
    "log_storage",
    "sweeper",
    "subscription",
    "lane",
    "cursor",
    "deferred",
    "member",
    "group_worker",
    "topic_count",
    "storage_count",
    "loss",
    "cluster",
    "sweep_setting",
    "sweep_job",
    "sweep_sample",
    "moving",
    "scope",
    "receipt",
    "catch_up",
    "token",
    "webhook",
    "audit_entry",
]
_DIRECT = [f"select * from postbus.{table}" for table in _TABLES] + [
    f"delete from postbus.{table}" for table in _TABLES
]
_INNER = [
    "select postbus.give_up_messages(1, false, array[]::postbus.queue_message[], '', '', now())",
    "select postbus.pass_keys(1, array[1], array['a'])",
    "select postbus.find_queued(1, 1, 1, null)",
    "select nextval('postbus.message_id')",
    "select nextval('postbus.segment_number')",
    "select nextval('postbus.log_epoch_2')",
    "select postbus.last_sequence(2)",
    "select postbus.take_position(2)",
    "select postbus.add_partition(2, 7)",
    "select postbus.drop_partitions(2, '3', now())",
    "select postbus.count_published(2)",
    "select postbus.lock_partition(2, 1)",
    "select postbus.forget_subscriptions('{}')",
    "select postbus.find_message('log', 1)",
    "select postbus.left_in_queue(1, now())",
    "create table postbus.mine (a int)",
]

_ALLOWED = {
    "producer": _PUBLISHING,
    "consumer": [_CLAIM, *_SETTLE, *_GROUPS],
    "observer": [*_VIEWS, *_LOOKS],
    "operator": [*_OPERATE_TOPICS, *_OPERATE_GROUPS, *_VIEWS, *_LOOKS],
    "admin": [*_ADMIN, *_GROUP_ADMIN, *_OPERATE_TOPICS, *_OPERATE_GROUPS, *_VIEWS, *_LOOKS],
    "": [],
}
_EVERYTHING = [
    *_PUBLISHING, _CLAIM, *_SETTLE, *_GROUPS, *_ADMIN, *_GROUP_ADMIN, *_OPERATE_TOPICS, *_OPERATE_GROUPS, *_VIEWS,
    *_LOOKS, *_DIRECT, *_INNER,
]  # fmt: skip
_SHARED = (
    "return_expired", "sweep", "sweep_log", "storages", "subscribe", "subscribe_scope", "sweep_subscriptions",
    "note_failure", "inbox_forget",
)  # fmt: skip


def _called(statement: str) -> str:
    """Return the function of ours that a statement calls, or the whole statement."""
    function = re.match(r"select (?:\* from )?postbus\.(\w+)\(", statement)
    return function[1] if function else statement


@pytest.mark.parametrize("role", _ALLOWED)
async def test_each_role_may_do_its_work_and_nothing_else(conn: Any, as_role: AsRole, role: str) -> None:
    """Everything else is refused; tables and internal functions are refused to every role."""
    await create_topic(conn, "log")
    await conn.fetch("select * from postbus.subscribe_scope('seen', topic => 'log')")
    await conn.execute("select postbus.create_topic('jobs')")
    await publish(conn, "one", topic="log")
    connection = await as_role(role)
    for statement in _ALLOWED[role]:
        await connection.fetch(statement)
    allowed = {_called(statement) for statement in _ALLOWED[role]}
    for statement in _EVERYTHING:
        if _called(statement) in allowed:
            continue
        if _called(statement) in _SHARED and role in ("admin", "consumer"):
            continue
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch(statement)


async def test_roles_share_the_work_of_a_log(conn: Any, as_role: AsRole) -> None:
    """An admin makes the topic, a producer publishes, a consumer subscribes, reads, settles and sweeps."""
    admin = await as_role("admin")
    producer, consumer = await as_role("producer"), await as_role("consumer")
    storage = await create_topic(admin, "log")
    group = await subscribe(consumer, topic="log")
    await publish(producer, "one", "two", topic="log", key="k")
    [lane] = await take(consumer, "w", group)
    result = await read(consumer, lane.cursor, topic="log")
    assert result.messages == ["one", "two"]
    assert await defer(consumer, lane, result, "retry", "dead") == ["retried", "dead"]
    assert await advance(consumer, [lane], result.next, 2) == []
    [row] = await claim_deferred(consumer, lane)
    assert await settle_deferred(consumer, lane, [row["id"]], "done") == ["done"]
    await conn.execute("update postbus.log_storage set partition_bytes = 1")
    while (await sweep(consumer, storage))["more"]:
        pass
    await publish(producer, "three", topic="log")
    assert await admin.fetchval("select postbus.redrive('log', group_name => 'g')") == 1
    assert await admin.fetchval("select lag from postbus.groups") == 1
    await admin.execute("select postbus.delete_topic('log', true)")


async def test_consumer_role_revives_its_dead_group(conn: Any, dsn: str, as_role: AsRole) -> None:
    """The process needs no more than the roles that it consumes with."""
    await create_topic(conn, "log")
    user = await (await as_role("consumer, observer")).fetchval("select current_user")
    got: list[str] = []

    async def is_alive() -> None:
        assert await conn.fetchval("select state from postbus.groups") == "ACTIVE"

    async with Bus.open(dsn.replace("postgres@", f"{user}@")) as bus:

        @bus.subscribe("log", group="g")
        async def handle(text: str) -> None:
            got.append(text)

        async with running(bus):
            await eventually(is_alive)
            await conn.execute("update postbus.subscription set state = 'DEAD', state_changed_at = clock_timestamp()")
            await eventually(is_alive)
            await publish(conn, "one", topic="log")
            await has(got, 1)


async def test_security_page_lists_the_proof_for_every_granted_function(conn: Any, roles: Roles) -> None:
    """docs/security.md names every granted function exactly once, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
    section = page.partition("## What proves a caller's right in SQL")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    granted = await conn.fetch(
        "select distinct p.proname from pg_proc p, aclexplode(p.proacl) as acl "
        "where p.pronamespace = 'postbus'::regnamespace and acl.grantee <> p.proowner"
    )
    assert sorted(named) == sorted(row["proname"] for row in granted)


async def test_planted_objects_fool_nobody(conn: Any, as_role: AsRole) -> None:
    """A caller's own functions, operators, tables and types never replace ours."""
    producer = await as_role("producer")
    await conn.execute(f"grant create on schema public to {await producer.fetchval('select current_user')}")
    await producer.execute(
        """
        create function public.evil() returns void language plpgsql as $$ begin raise exception 'fooled'; end $$;
        create function public.clock_timestamp() returns timestamptz language sql as $$ select public.evil(), now() $$;
    """.replace("select public.evil(), now()", "select case when public.evil() is null then now() end")
    )
    for signature, result in (
        ("length(bytea)", "integer"), ("jsonb_typeof(jsonb)", "text"), ("format(text, anyelement)", "text"),
        ("convert_to(text, name)", "bytea"), ("md5(text)", "text"), ("left(text, integer)", "text"),
        ("nextval(text)", "bigint"), ("quote_literal(text)", "text"),
    ):  # fmt: skip
        await producer.execute(
            f"create function public.{signature} returns {result} language plpgsql as "
            "$$ begin raise exception 'fooled'; end $$"
        )
    await producer.execute("""
        create function public.equal(text, text) returns boolean language plpgsql
            as $$ begin raise exception 'fooled'; end $$;
        create operator public.= (leftarg = text, rightarg = text, function = public.equal);
        create operator public.!~ (leftarg = text, rightarg = text, function = public.equal);
        create temp table topic (id bigint, name text);
        create temp table queued (a int);
        create temp table topic_seen (a int);
        set search_path = public, pg_temp, postbus, pg_catalog;
    """)
    await producer.fetch("select postbus.publish('t', 'safe'::text, key => 'k')")
    await producer.fetch("""select postbus.publish('t', '{"a": 1}'::jsonb, headers => '{"a": "b"}')""")
    await producer.fetch("select postbus.publish_many('t', array['x'::bytea], keys => array['k'])")

    assert payloads(await claim(conn)) == ["safe", '{"a": 1}', "x"]


async def test_no_function_is_open_to_the_public(conn: Any) -> None:
    """PUBLIC may execute no function, and every security definer pins its search path."""
    rows = await conn.fetch("""
        select p.proname, p.prosecdef, p.proconfig::text as config,
               has_function_privilege('public', p.oid, 'execute') as open
          from pg_proc p where p.pronamespace in ('postbus'::regnamespace, 'postbus_outbox'::regnamespace)
    """)
    assert rows
    assert not [row["proname"] for row in rows if row["open"]]
    pinned = "search_path=pg_catalog, pg_temp"
    assert not [row["proname"] for row in rows if row["prosecdef"] and pinned not in (row["config"] or "")]


async def test_publishing_needs_no_rights_beyond_its_role(conn: Any, as_role: AsRole) -> None:
    """A producer's message reaches a consumer that is another user."""
    producer, consumer = await as_role("producer"), await as_role("consumer")
    await publish(producer, "one", key="k", dedup_key="d")

    claimed = await claim(consumer)

    assert payloads(claimed) == ["one"]
    assert await consumer.fetchval("select postbus.ack($1, $2)", claimed["token"], claimed["ids"]) == []
