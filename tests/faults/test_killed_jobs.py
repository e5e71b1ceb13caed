"""Jobs that are killed after each of their statements in turn, and then run again.

A trigger after every statement that writes to, creates or drops one of our tables ends its own backend when its turn
has come. After each kill nothing may have changed, and in the end everything must be as after an undisturbed run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from postbus._db.error_map import DRIVER_ERRORS
from postbus.embedded import EmbeddedPostgres
from support.eventually import eventually
from support.log_sql import advance, create_topic, defer, publish_many, read, subscribe, take
from support.queue_sql import ack, claim, publish

_MINUTE = timedelta(minutes=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)

_KILL = """
create function public.kill() returns void language plpgsql as $$
declare
    _turn integer := coalesce(nullif(current_setting('test.kill_after', true), ''), '0');
begin
    perform set_config('test.kill_after', (_turn - 1)::text, false);
    if _turn = 1 then
        perform pg_terminate_backend(pg_backend_pid(), 10000);
    end if;
end $$;
create function public.after_statement() returns trigger language plpgsql as
$$ begin perform public.kill(); return null; end $$;
create function public.after_ddl() returns event_trigger language plpgsql as
$$ begin perform public.kill(); end $$;
do $$
declare
    _table text;
begin
    for _table in
        select c.oid::regclass from pg_class c
         where c.relnamespace = 'postbus'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    loop
        execute format('create trigger kill after insert or update or delete on %s '
                       'for each statement execute function public.after_statement()', _table);
    end loop;
end $$;
create event trigger kill on ddl_command_end execute function public.after_ddl();
"""


@dataclass
class Run:
    """A database in which jobs run: undisturbed, or first killed after each statement."""

    dsn: str
    watcher: Any
    is_disturbed: bool
    kills: int = 0
    told: list[dict[str, Any]] = field(default_factory=list)

    async def do(self, sql: str, *args: Any) -> dict[str, Any]:
        """Run a job, killing it as often as it has statements. Returns the answer of the run that lives."""
        await eventually(self._all_have_ended)
        turn = 1 if self.is_disturbed else 0
        while True:
            before = await self.state() if turn else None
            conn: Any = await asyncpg.connect(self.dsn)
            pid = conn.get_server_pid()
            await conn.execute(f"set test.kill_after = '{turn}'")
            try:
                row = await conn.fetchrow(sql, *args)
            except DRIVER_ERRORS:
                await eventually(self._is_gone, pid)  # until then it holds its locks
                assert await self.state() == before, f"something is left of a run that was killed: {sql}"
                self.kills += 1
                turn += 1
                continue
            finally:
                await conn.close()
            self.told.append(dict(row) if row is not None else {})
            return self.told[-1]

    async def _all_have_ended(self) -> None:
        """Wait until all transactions anywhere have ended that were open when partitions were closed."""
        assert await self.watcher.fetchval(
            "select coalesce(bool_and(closed_txid < pg_snapshot_xmin(pg_current_snapshot())), true) "
            "from postbus.log_partition"
        )

    async def _is_gone(self, pid: int) -> None:
        assert not await self.watcher.fetchval("select exists (select from pg_stat_activity where pid = $1)", pid)

    async def state(self) -> dict[str, list[Any]]:
        """Return all tables without what differs between runs: times, transaction ids, tokens, ids of subscriptions."""
        conn = self.watcher
        names = await conn.fetch(
            "select c.relname, c.relispartition from pg_class c where c.relnamespace = 'postbus'::regnamespace "
            "and c.relkind in ('r', 'p') and c.relname not in ('migration', 'installed', 'cluster') order by 1"
        )
        numbers = {
            row["id"]: rank
            for rank, row in enumerate(await conn.fetch("select id from postbus.subscription order by id"), 1)
        }
        found: dict[str, list[Any]] = {"tables": [row["relname"] for row in names]}
        for row in names:
            if not row["relispartition"]:
                rows = await conn.fetch(f"select * from postbus.{row['relname']}")
                found[row["relname"]] = sorted(
                    (_plain(one, row["relname"], numbers) for one in rows), key=lambda one: json.dumps(one)
                )
        return found


_OF_SUBSCRIPTIONS = {"subscription_id", "of", "catch_up_of", "group_id"}
_DIFFERS = {"took", "snapshot"}
_DIFFERS_IN = {
    ("group_event", "id"),
    ("group_event", "fields"),
    ("audit_entry", "id"),
    ("log_partition", "listed"),
    ("log_partition", "after_number"),
}
"""A kill does not set a sequence back: numbers are missing, and a partition that has begun is listed one sweep earlier.
The fields of an event name times."""


def _plain(value: Any, name: str, numbers: dict[int, int]) -> Any:
    match value:
        case asyncpg.Record():
            return {
                key: numbers.get(one, one)
                if key in _OF_SUBSCRIPTIONS or (name, key) == ("subscription", "id")
                else _plain(one, key, numbers)
                for key, one in value.items()
                if key not in _DIFFERS and (name, key) not in _DIFFERS_IN
            }
        case list():
            return [_plain(one, name, numbers) for one in value]
        case datetime() | UUID():
            return type(value).__name__
        case timedelta() | bytes() | asyncpg.Range():
            return str(value)
        case int() if name.endswith("txid"):
            return "txid"
        case _:
            return value


Prepare = Callable[[Any], Awaitable[None]]
Runs = Callable[[Prepare, Callable[[Run], Awaitable[None]]], Awaitable[Run]]


@pytest.fixture
async def runs(server: EmbeddedPostgres, dsn: str) -> AsyncIterator[Runs]:
    """Prepare two databases in the same way, and run jobs in them undisturbed and killed. Returns the first run."""
    root: Any = await asyncpg.connect(server.dsn())
    names: list[str] = []
    watchers: list[Any] = []

    async def run(prepare: Prepare, work: Callable[[Run], Awaitable[None]]) -> Run:
        conn: Any = await asyncpg.connect(dsn)
        await prepare(conn)
        base = await conn.fetchval("select current_database()")
        await conn.execute(_KILL)
        await conn.close()
        ended = []
        for is_disturbed in (False, True):
            name = f"{base}_{is_disturbed}".lower()
            names.append(name)
            await root.execute(f"create database {name} template {base}")
            watchers.append(await asyncpg.connect(server.dsn(name)))
            one = Run(server.dsn(name), watchers[-1], is_disturbed)
            await work(one)
            ended.append(one)
        undisturbed, disturbed = ended
        assert await disturbed.state() == await undisturbed.state()
        assert disturbed.kills > 0
        undisturbed.kills = disturbed.kills
        return undisturbed

    yield run
    for watcher in watchers:
        await watcher.close()
    for name in names:
        await root.execute(f"drop database if exists {name} with (force)")
    await root.close()


_SWEEP_LOG = "select * from postbus.sweep_log_as_of(1, clock_timestamp() + $1)"
_HEARTBEAT = """
select * from postbus.group_heartbeat(array[$1::bigint], array[$1::bigint], '{m}', '{1}', '{0}', '{0}', '{0}', '{0}')
"""
_BRIEF = {"retention": "0", "zero_subscription_retention": "0"}


async def sweep_log(run: Run, *times: timedelta) -> None:
    """Sweep as processes do, again at once while there is more to do. A kill does not undo the start of a partition."""
    for later in times:
        while (await run.do(_SWEEP_LOG, later))["more"]:
            pass


async def settle(conn: Any, subscription: int, worker: str = "w") -> None:
    """Let a group settle everything there is, in a few steps."""
    [lane] = await take(conn, worker, subscription)
    while True:
        result = await read(conn, lane.cursor, 2)
        if result.next == lane.cursor:
            break
        await advance(conn, [lane], result.next, len(result.messages))
    await conn.execute("select postbus.leave_groups($1, array[$2::bigint])", worker, subscription)


async def test_killed_sweep_of_the_log_is_repeated(runs: Runs) -> None:
    """It counts, begins and closes partitions, folds the ledger to receipts, and drops with and without losses."""

    async def prepare(conn: Any) -> None:
        await create_topic(conn, **_BRIEF, max_retention="3 days", heartbeat_timeout="100 days", zombie_time="100 days")
        quick = await subscribe(conn, "quick")
        await subscribe(conn, "slow")
        for payloads in ("abc", "def", "ghi"):
            await publish_many(conn, *payloads)
            await settle(conn, quick)
        await conn.execute("update postbus.log_storage set partition_bytes = 1")

    async def work(run: Run) -> None:
        await sweep_log(run, timedelta(0), 10 * _MINUTE, 2 * _DAY, 4 * _DAY)

    done = await runs(prepare, work)
    assert sum(one["counted"] for one in done.told) == 9
    assert sum(one["folded"] for one in done.told) > 0
    assert [one["opened"] for one in done.told if one["opened"]] == [2]
    assert [one["dropped"] for one in done.told if one["dropped"]] == [["segment_1_1"]]
    assert await done.watcher.fetchval("select sum(messages) from postbus.loss") == 9
    assert done.kills > 60


async def test_killed_folding_makes_each_receipt_once(runs: Runs) -> None:
    """However often it is killed, each row of the ledger becomes one receipt."""

    async def prepare(conn: Any) -> None:
        await create_topic(conn, retention="1 hour", zero_subscription_retention="1 hour")
        group = await subscribe(conn)
        for payload in "abcdef":
            await publish_many(conn, payload)
            await settle(conn, group)
        await conn.execute("update postbus.cursor set fenced_at = fenced_at - interval '2 days'")

    async def work(run: Run) -> None:
        await sweep_log(run, 10 * _MINUTE, 20 * _MINUTE)

    done = await runs(prepare, work)
    folded = sum(one["folded"] for one in done.told)
    assert folded > 5
    assert await done.watcher.fetchval("select count(*) from postbus.receipt") == folded


async def test_killed_sweep_of_queues_is_repeated(runs: Runs) -> None:
    """It removes finished messages, deduplication keys, inbox records, gone processes and names, and returns leases."""

    async def prepare(conn: Any) -> None:
        await conn.execute("""select postbus.create_topic('q', '{"retention": "1 hour", "max_attempts": 2}')""")
        await publish(conn, *"abc", topic="q")
        await ack(conn, await claim(conn, topic="q"))
        await publish(conn, "d", topic="q", dedup_key="d")
        await publish(conn, "e", topic="q")
        await claim(conn, topic="q")
        await conn.execute("select postbus.heartbeat('w', 'h', 1, '{}')")
        await conn.execute("insert into postbus.topic_seen values (postbus.topic_id('q'), 'q')")
        await conn.execute("select postbus.inbox_once('c', 'm', '1 hour'), postbus.inbox_once('c', 'n')")

    async def work(run: Run) -> None:
        for _ in range(2):
            await run.do("select * from postbus.sweep_as_of(as_of => clock_timestamp() + $1)", 2 * _DAY)
            await run.do("select postbus.return_expired_as_of(as_of => clock_timestamp() + $1) as count", 2 * _DAY)

    done = await runs(prepare, work)
    assert [one.get("finished_rows") for one in done.told] == [1, None, 0, None]
    assert (done.told[0]["dedup_keys"], done.told[0]["workers"], done.told[1]["count"]) == (1, 1, 2)
    assert done.told[0]["inbox_records"] == 1


@pytest.mark.parametrize("options", [{}, {"beside_from": 0, "max_messages": 4}])
async def test_killed_death_and_resurrection_are_repeated(runs: Runs, options: dict[str, Any]) -> None:
    """The group returns in order, or with a catch-up, or with some messages skipped."""

    async def prepare(conn: Any) -> None:
        await create_topic(conn, retention="1 hour", zero_subscription_retention="1 hour")
        await subscribe(conn, catch_up=json.dumps(options))
        await publish_many(conn, *"abcdefgh")

    async def work(run: Run) -> None:
        await sweep_log(run, 3 * _MINUTE, 4 * _MINUTE, 6 * _MINUTE, 7 * _MINUTE)
        group = await run.watcher.fetchval("select min(id) from postbus.subscription")
        for _ in range(2):
            await run.do(_HEARTBEAT, group)

    done = await runs(prepare, work)
    first, second = done.told[-2:]
    assert sum(one["dead"] for one in done.told[:-2]) == 1
    assert first["missed"] == 8
    assert first["skipped"] == (4 if "max_messages" in options else 0)
    assert (first["catch_up_id"] is not None) == bool(options)
    assert second == {}


@pytest.mark.parametrize("options", [{"beside_from": 2}, {"beside_from": 2, "max_messages": 5}, {"max_messages": 5}])
async def test_killed_subscription_with_history_is_repeated(runs: Runs, options: dict[str, Any]) -> None:
    """Subscribing sets the bounds of the catch-up, and subscribing again does nothing."""

    async def prepare(conn: Any) -> None:
        await create_topic(conn, lanes=2)
        await publish_many(conn, *"abcdefgh", keys=list("abcdabcd"))

    async def work(run: Run) -> None:
        for _ in range(2):
            await run.do(
                "select * from postbus.subscribe('t', 'g', 'FROM_BEGINNING', catch_up => $1)", json.dumps(options)
            )

    done = await runs(prepare, work)
    assert [one["is_new"] for one in done.told] == [True, False]
    assert await done.watcher.fetchval("select count(*) from postbus.catch_up") == bool(options)


async def test_killed_end_of_a_catch_up_is_repeated(runs: Runs) -> None:
    """Its ledger becomes receipts once, and its rows are removed."""

    async def prepare(conn: Any) -> None:
        await create_topic(conn, retention="1 hour", zero_subscription_retention="1 hour")
        await publish_many(conn, *"abcdefgh")
        await subscribe(conn, start="FROM_BEGINNING", catch_up=json.dumps({"beside_from": 2}))
        await settle(conn, await conn.fetchval("select subscription_id from postbus.catch_up"))

    async def work(run: Run) -> None:
        await sweep_log(run, timedelta(0), timedelta(0))

    done = await runs(prepare, work)
    row = await done.watcher.fetchrow("select status, processed from postbus.catch_up")
    assert tuple(row) == ("COMPLETED", 8)
    assert await done.watcher.fetchval("select count(*) from postbus.receipt") > 0


async def test_killed_removal_of_old_subscriptions_is_repeated(runs: Runs) -> None:
    """A cancelled one with a catch-up and a DEAD one are removed; one with a dead letter stays."""

    async def prepare(conn: Any) -> None:
        await create_topic(conn)
        await publish_many(conn, *"abcdefgh")
        await subscribe(conn, "cancelled", start="FROM_BEGINNING", catch_up=json.dumps({"beside_from": 2}))
        for name in ("dead", "stays"):
            group = await subscribe(conn, name, start="FROM_BEGINNING")
            [lane] = await take(conn, "w", group)
        await defer(conn, lane, await read(conn, lane.cursor), "dead")
        await conn.execute("select postbus.set_group_state('t', 'cancelled', 'CANCELLED')")
        await conn.execute("update postbus.subscription set state = 'DEAD' where state = 'ACTIVE'")

    async def work(run: Run) -> None:
        for later in (_DAY, 31 * _DAY, 31 * _DAY):
            await run.do("select postbus.sweep_subscriptions_as_of(clock_timestamp() + $1) as count", later)

    done = await runs(prepare, work)
    assert [one["count"] for one in done.told] == [0, 3, 0]
    assert await done.watcher.fetchval("select array_agg(group_name) from postbus.subscription") == ["stays"]
