"""The log's SQL functions, short to call from tests."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

_NUMBER = (1 << 43) - 1


async def create_topic(conn: Any, name: str = "t", **options: Any) -> int:
    """Create a PUB_SUB topic, with one lane unless told otherwise. Returns its storage."""
    chosen = {"semantics": "PUB_SUB", "lanes": 1, **options}
    storage: int = await conn.fetchval(
        "select storage_id from postbus.create_topic($1, $2::jsonb)", name, json.dumps(chosen)
    )
    return storage


async def subscribe(conn: Any, group: str = "g", start: str = "FROM_NOW", *, topic: str = "t", **options: Any) -> int:
    """Subscribe a group. Returns the subscription's id."""
    named = "".join(f", {name} => ${n}" for n, name in enumerate(options, 4))
    id: int = await conn.fetchval(
        f"select subscription_id from postbus.subscribe($1, $2, $3{named})", topic, group, start, *options.values()
    )
    return id


async def publish_many(
    conn: Any, *payloads: str, topic: str = "t", keys: list[str | None] | None = None, **options: Any
) -> list[int]:
    named = "".join(f", {name} => ${n}" for n, name in enumerate(options, 4))
    ids: list[int] = await conn.fetchval(
        f"select postbus.publish_many($1, $2::bytea[], keys => $3{named})",
        topic,
        [payload.encode() for payload in payloads],
        keys,
        *options.values(),
    )
    return ids


async def cursor_of(conn: Any, subscription: int, lane: int = 0) -> str:
    """Return the stored cursor of a lane."""
    cursor: str = await conn.fetchval(
        "select cursor::text from postbus.cursor where subscription_id = $1 and lane = $2 order by number desc limit 1",
        subscription,
        lane,
    )
    return cursor


@dataclass
class ReadResult:
    """The result of one read."""

    messages: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    at: list[tuple[int, int]] = field(default_factory=list)
    segments: list[Any] = field(default_factory=list)
    next: str = ""
    during: str | None = None
    more: bool = False

    def after(self, count: int) -> ReadResult:
        """Return the rest without the first messages."""
        return replace(self, messages=self.messages[count:], keys=self.keys[count:], at=self.at[count:])

    @property
    def ids(self) -> list[int]:
        return [(position & _NUMBER) * 1024 + index for position, index in self.at]


async def read(
    conn: Any, cursor: str, count: int = 1000, *, topic: str = "t", lanes: tuple[int, ...] = (0,), **options: Any
) -> ReadResult:
    """Call `read_log` once."""
    named = "".join(f", {name} => ${n}" for n, name in enumerate(options, 5))
    rows = await conn.fetch(
        f"select * from postbus.read_log($1, $2, $3, max_count => $4{named})",
        topic,
        list(lanes),
        cursor,
        count,
        *options.values(),
    )
    last = rows.pop()
    result = ReadResult(segments=rows, next=last["next_cursor"], during=last["during_cursor"], more=last["more"])
    for row in rows:
        for index in range(row["first_index"], len(row["payloads"])):
            result.messages.append(row["payloads"][index].decode(errors="replace"))
            result.keys.append(row["keys"][index] if row["keys"] else None)
            result.at.append((row["sequence"], index))
    return result


async def read_all(conn: Any, cursor: str, count: int = 1000, **options: Any) -> tuple[list[str], str]:
    """Read until nothing more is there. Returns the messages, and the cursor after them."""
    found: list[str] = []
    while True:
        result = await read(conn, cursor, count, **options)
        found += result.messages
        cursor = result.next
        if not result.more and not result.messages:
            return found, cursor


@dataclass
class Lane:
    """A lane that a worker holds."""

    subscription: int
    lane: int
    token: Any
    number: int
    cursor: str
    deaths: int = 0
    careful_until: int | None = None


async def beat(conn: Any, *workers: str) -> None:
    for worker in workers:
        await conn.execute("select postbus.heartbeat($1, 'host', 1, '{}')", worker)


async def vanish(conn: Any, *workers: str) -> None:
    """Make workers last seen an hour ago."""
    await conn.execute(
        "update postbus.worker set seen_at = clock_timestamp() - interval '1 hour' where name = any ($1)", list(workers)
    )


async def lease(conn: Any, worker: str, subscription: int, held: list[Lane] | None = None) -> list[Any]:
    """Return the rows of `lease_lanes`, after a heartbeat."""
    await beat(conn, worker)
    rows: list[Any] = await conn.fetch(
        "select * from postbus.lease_lanes($1, $2, $3)", worker, [subscription], [lane.token for lane in held or []]
    )
    return rows


async def take(conn: Any, worker: str, subscription: int, held: list[Lane] | None = None) -> list[Lane]:
    """Return the lanes that a worker gets, by lane."""
    return [
        Lane(subscription, row["lane"], row["token"], row["number"], row["cursor"], row["deaths"], row["careful_until"])
        for row in await lease(conn, worker, subscription, held)
        if row["action"] == "take"
    ]


async def advance(
    conn: Any, lanes: list[Lane], cursor: str, passed: int = 0, done: tuple[int, int] | None = None
) -> list[int]:
    """Advance lanes. Returns the lost ones, by their numbers in the list from 1 on."""
    lost: list[int] = await conn.fetchval(
        "select postbus.advance($1, $2, $3, $4, $5, $6, $7, $8)",
        [lane.subscription for lane in lanes],
        [lane.lane for lane in lanes],
        [lane.token for lane in lanes],
        [lane.number for lane in lanes],
        [cursor] * len(lanes),
        [done[0] if done else None] * len(lanes),
        [done[1] if done else None] * len(lanes),
        [passed] * len(lanes),
    )
    for n, lane in enumerate(lanes, 1):
        if n not in lost:
            lane.number += 1
            lane.cursor = cursor
    return lost


async def defer(conn: Any, lane: Lane, result: ReadResult, *kinds: str, **options: Any) -> list[str] | None:
    """Defer the first messages of a read result, one for each of `kinds`."""
    named = "".join(f", {name} => ${n}" for n, name in enumerate(options, 10))
    count = len(kinds)
    told: list[str] | None = await conn.fetchval(
        f"select postbus.defer($1, $2, $3, $4, $5, $6, $7, $8, $9{named})",
        lane.subscription,
        lane.lane,
        lane.token,
        list(kinds),
        result.ids[:count],
        [position for position, _ in result.at[:count]],
        [timedelta(0)] * count,
        ["it failed"] * count,
        [None] * count,
        *options.values(),
    )
    return told


async def claim_deferred(
    conn: Any, lane: Lane, count: int = 10, *, as_of: datetime | None = None, is_alone: bool = False
) -> list[Any]:
    """Claim the retries that are due in a lane; with `as_of`, as if it were then."""
    function = "claim_deferred" if as_of is None else "claim_deferred_as_of"
    named = "" if as_of is None else ", as_of => $4"
    rows: list[Any] = await conn.fetch(
        f"select * from postbus.{function}(array[$1::uuid], $2, is_alone => $3{named}) order by sequence, id",
        lane.token,
        count,
        is_alone,
        *([] if as_of is None else [as_of]),
    )
    return rows


async def settle_deferred(conn: Any, lane: Lane, ids: list[int], outcome: str, **options: Any) -> list[str]:
    named = "".join(f", {name} => ${n}" for n, name in enumerate(options, 6))
    told: list[str] = await conn.fetchval(
        f"select postbus.settle_deferred($1, $2, $3, $4, $5{named})",
        lane.subscription,
        lane.lane,
        lane.token,
        ids,
        outcome,
        *options.values(),
    )
    return told


async def refused(act: Awaitable[Any], code: str) -> str:
    """Return the hint of the error with which something is refused."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await act
    assert caught.value.sqlstate == code
    return str(caught.value.hint)


async def pass_all(conn: Any, group: int, worker: str = "w", *, topic: str = "t") -> int:
    """Let a group settle everything there is."""
    held = await take(conn, worker, group)
    count = 0
    for lane in held:
        result = await read(conn, lane.cursor, 100000, topic=topic, lanes=(lane.lane,))
        assert not result.more
        await advance(conn, [lane], result.next, len(result.messages))
        count += len(result.messages)
    await conn.execute("select postbus.leave_groups($1, array[$2::bigint])", worker, group)
    return count


async def sweep(conn: Any, storage: int, later: timedelta = timedelta(0)) -> Any:
    """Call `sweep_log` once, as if `later`."""
    if not later:
        return await conn.fetchrow("select * from postbus.sweep_log($1)", storage)
    return await conn.fetchrow("select * from postbus.sweep_log_as_of($1, clock_timestamp() + $2)", storage, later)


async def let_die(conn: Any, storage: int, later: timedelta = timedelta(minutes=6)) -> int:
    """Check for heartbeats as often as it takes, the last time `later`. Returns how many groups died then."""
    for before in (2, 1):
        assert (await sweep(conn, storage, later - timedelta(minutes=before)))["dead"] == 0, "two misses kill nobody"
    return int((await sweep(conn, storage, later))["dead"])


async def publish_partitions(conn: Any, storage: int) -> None:
    """Publish a new storage to all sessions, so that it is read as a whole and not by the names of its partitions."""
    while (await sweep(conn, storage))["more"]:
        pass


async def rotate(conn: Any, storage: int) -> int:
    """Begin a new partition, after the current one has got a message. Returns its epoch."""
    await conn.execute("update postbus.log_storage set partition_bytes = 1 where id = $1", storage)
    opened = None
    # at most: a standby partition, the storage is published, one more partition, and then that one begins
    for _ in range(4):
        opened = opened or (await sweep(conn, storage))["opened"]
    assert opened, "the partition is empty"
    await conn.execute("update postbus.log_storage set partition_bytes = 1 << 30 where id = $1", storage)
    return int(opened)


async def partitions_of(conn: Any, storage: int) -> list[int]:
    """Return the epochs of the existing partitions, up to the one that is written to."""
    rows = await conn.fetch(
        "select epoch from postbus.log_partition where storage_id = $1 and epoch <= postbus.epoch($1) order by 1",
        storage,
    )
    return [row[0] for row in rows]


async def subscribe_scope(conn: Any, group: str = "g", **scope: Any) -> dict[str, int]:
    """Subscribe to a scope. Returns the subscriptions by topic."""
    named = ", ".join(f"{name} => ${n}" for n, name in enumerate(scope, 2))
    rows = await conn.fetch(
        f"select topic_name, subscription_id from postbus.subscribe_scope($1, {named})", group, *scope.values()
    )
    return {row["topic_name"]: row["subscription_id"] for row in rows}
