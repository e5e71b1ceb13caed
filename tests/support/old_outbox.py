"""Outbox tables of other systems, as their guides have them, for tests of importing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from postbus import Bus, Message
from postbus._admin.outbox_import.runner import ImportedGroup, ImportResult

FAN_OUT = """
create table outbox (
    id bigserial primary key, topic varchar(255) not null, payload jsonb not null,
    created_at timestamp with time zone default now(), processed_at timestamp with time zone,
    status varchar(50) default 'PENDING', required_consumer_groups int default 0,
    completed_consumer_groups int default 0,
    retry_count int default 0, version int default 0, headers jsonb default '{}',
    correlation_id varchar(255), message_group varchar(255));
create table outbox_consumer_groups (
    id bigserial primary key, message_id bigint not null references outbox(id), group_name varchar(255) not null,
    status varchar(50) default 'PENDING', processed_at timestamp with time zone, error_message text,
    retry_count int default 0, unique (message_id, group_name));
create table outbox_topics (
    topic varchar(255) primary key, semantics varchar(20) default 'QUEUE', message_retention_hours int default 24,
    zero_subscription_retention_hours int default 24, block_writes_on_zero_subscriptions boolean default false,
    completion_tracking_mode varchar(20) default 'REFERENCE_COUNTING');
create table outbox_topic_subscriptions (
    id bigserial primary key, topic varchar(255) not null, group_name varchar(255) not null,
    subscription_status varchar(20) default 'ACTIVE', start_from_message_id bigint,
    start_from_timestamp timestamp with time zone, last_heartbeat_at timestamp with time zone,
    unique (topic, group_name));
"""

OFFSETS = """
create table outbox_subscription_offsets (
    id bigserial primary key, subscription_id bigint, topic varchar(255) not null, group_name varchar(255) not null,
    last_processed_id bigint not null default 0, unique (topic, group_name));
"""

SIMPLE = """
create table outbox_events (
    id uuid primary key default gen_random_uuid(), event_type text not null, aggregate_type text not null,
    aggregate_id uuid not null, payload_json jsonb not null, created_at timestamptz not null default clock_timestamp(),
    published_at timestamptz, attempt_count int not null default 0, last_error text);
"""


async def add_topic(conn: Any, topic: str = "t", semantics: str = "PUB_SUB", **states: str) -> None:
    """Add a topic, and groups in their states."""
    await conn.execute("insert into outbox_topics (topic, semantics) values ($1, $2)", topic, semantics)
    for group, state in states.items():
        await conn.execute(
            "insert into outbox_topic_subscriptions (topic, group_name, subscription_status) values ($1, $2, $3)",
            topic,
            group,
            state,
        )


async def add_messages(conn: Any, ids: Iterable[int], topic: str = "t", *, keys: int = 5) -> None:
    """Add messages that contain their ids, with repeating keys; `keys` 0 for none."""
    await conn.execute(
        "insert into outbox (id, topic, payload, message_group, headers, correlation_id, required_consumer_groups) "
        "select n, $2, jsonb_build_object('n', n), 'k' || n % nullif($3::int, 0), "
        '\'{"tenant": "acme", "try": 1}\', \'c\' || n, 1 from unnest($1::bigint[]) as n',
        list(ids),
        topic,
        keys,
    )


async def finish(conn: Any, group: str, ids: Iterable[int]) -> None:
    """Let a group complete messages."""
    await conn.execute(
        "insert into outbox_consumer_groups (message_id, group_name, status) select n, $2, 'COMPLETED' "
        "from unnest($1::bigint[]) as n",
        list(ids),
        group,
    )


async def fail(conn: Any, group: str, message_id: int, times: int) -> None:
    """Let a group have failed with a message."""
    await conn.execute(
        "insert into outbox_consumer_groups (message_id, group_name, status, retry_count, error_message) "
        "values ($1, $2, 'FAILED', $3, 'no luck')",
        message_id,
        group,
        times,
    )


def listen(bus: Bus, group: str, topic: str = "t", **options: Any) -> list[Message]:
    """Subscribe a handler that records the messages it gets. Returns their list."""
    got: list[Message] = []

    @bus.subscribe(topic, group=group, concurrency=4, **options)
    async def handle(payload: dict[str, Any], message: Message) -> None:
        got.append(message)

    return got


def numbers(messages: Iterable[Message]) -> list[int]:
    return [json.loads(message.payload)["n"] for message in messages]


def check(got: Collection[Message], expected: Iterable[int]) -> None:
    """Check that exactly these came, once each, and those of a key in their order."""
    came = numbers(got)
    assert sorted(came) == sorted(expected)
    by_key: Mapping[str | None, list[int]] = {message.key: [] for message in got}
    for message, n in zip(got, came, strict=True):
        by_key[message.key].append(n)
    for key, ns in by_key.items():
        assert key is None or ns == sorted(ns), f"{key}: {ns}"


def groups_of(result: ImportResult) -> dict[str, ImportedGroup]:
    return {group.name: group for topic in result.topics for group in topic.groups}


async def counts(conn: Any) -> dict[str, int]:
    """Return the number of rows in each table that an import writes."""
    tables = ("topic", "subscription", "segment", "deferred", "queued", "imported", "imported_group")
    return {table: await conn.fetchval(f"select count(*) from postbus.{table}") for table in tables}
