"""Roles: what each may do, what it must not, and that nobody is fooled by planted objects."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from queue_sql import claim, payloads, publish

AsRole = Callable[[str], Awaitable[Any]]


@pytest.fixture
async def as_role(conn: Any, dsn: str) -> AsyncIterator[AsRole]:
    """Connections of users that have one role of ours each."""
    users, connections = [], []

    async def connect(role: str) -> Any:
        user = f"user_{secrets.token_hex(6)}"
        await conn.execute(f"create role {user} login in role {role}" if role else f"create role {user} login")
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
_ADMIN = [
    "select postbus.create_topic('u')",
    "select postbus.set_topic('u', '{}')",
    "select postbus.pause_topic('u')",
    "select postbus.resume_topic('u')",
    "select postbus.purge_topic('u')",
    "select postbus.redrive('u')",
    "select postbus.purge_dead_letters('u')",
    "select postbus.delete_topic('u')",
]
_VIEWS = [f"select count(*) from postbus.{view}" for view in ("topics", "messages", "dead_letters", "workers")]
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
    "migration",
]
_DIRECT = [f"select * from postbus.{table}" for table in _TABLES] + [
    f"delete from postbus.{table}" for table in _TABLES
]
_INNER = [
    "select postbus.bury(1, false, array[]::postbus.queue_message[], '', '', now())",
    "select postbus.pass_keys(1, array[1], array['a'])",
    "select postbus.find_queued(1, 1, 1, null)",
    "select nextval('postbus.message_id')",
    "create table postbus.mine (a int)",
]

_ALLOWED = {
    "postbus_producer": [_PUBLISH, _PUBLISH_MANY],
    "postbus_consumer": [_CLAIM, *_SETTLE],
    "postbus_observer": _VIEWS,
    "postbus_admin": [*_ADMIN, *_VIEWS],
    "": [],
}
_EVERYTHING = [_PUBLISH, _PUBLISH_MANY, _CLAIM, *_SETTLE, *_ADMIN, *_VIEWS, *_DIRECT, *_INNER]


@pytest.mark.parametrize("role", _ALLOWED)
async def test_each_role_may_do_its_work_and_nothing_else(as_role: AsRole, role: str) -> None:
    """What a role is for works; everything else is refused, tables and inner functions to all of them."""
    connection = await as_role(role)
    for statement in _ALLOWED[role]:
        await connection.fetch(statement)
    for statement in _EVERYTHING:
        if statement in _ALLOWED[role] or (role == "postbus_admin" and "return_expired" in statement):
            continue
        if role == "postbus_admin" and statement == "select postbus.sweep()":
            continue
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch(statement)


async def test_planted_objects_fool_nobody(conn: Any, as_role: AsRole) -> None:
    """Functions, operators, tables and types of the caller's own never stand in for those we mean."""
    producer = await as_role("postbus_producer")
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


async def test_every_function_that_users_call_is_closed_to_the_public(conn: Any) -> None:
    """No function may be executed by everybody, and every security definer has its search path pinned."""
    rows = await conn.fetch("""
        select p.proname, p.prosecdef, p.proconfig::text as config,
               has_function_privilege('public', p.oid, 'execute') as open
          from pg_proc p where p.pronamespace = 'postbus'::regnamespace
    """)
    assert rows
    assert not [row["proname"] for row in rows if row["open"]]
    pinned = "search_path=pg_catalog, pg_temp"
    assert not [row["proname"] for row in rows if row["prosecdef"] and pinned not in (row["config"] or "")]


async def test_publishing_needs_no_rights_beyond_its_role(conn: Any, as_role: AsRole) -> None:
    """A producer's message reaches a consumer that is another user."""
    producer, consumer = await as_role("postbus_producer"), await as_role("postbus_consumer")
    await publish(producer, "one", key="k", dedup_key="d")

    claimed = await claim(consumer)

    assert payloads(claimed) == ["one"]
    assert await consumer.fetchval("select postbus.ack($1, $2)", claimed["token"], claimed["ids"]) == []
