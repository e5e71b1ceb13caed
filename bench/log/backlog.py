"""The same read with a small backlog, with a large one, and beside an old transaction."""

from __future__ import annotations

import time
from statistics import median

import asyncpg

from bench import load
from bench.lab import Lab, connection
from bench.log.publish import TOPIC
from bench.plan import BATCH, Plan
from bench.report import Report
from postbus import Bus

_READS = 40  # per round


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure reads of a thousand messages at the beginning of a backlog, each with the move of the cursor."""
    given = load.payloads(min(plan.log_messages, 50_000))
    async with lab.database() as small, lab.database() as large:
        for dsn, count in ((small, plan.few), (large, plan.log_messages)):
            async with Bus.open(dsn) as bus, connection(dsn) as conn:
                await bus.admin.create_topic(TOPIC, semantics="PUB_SUB", lanes=1)
                await load.fill(bus, conn, TOPIC, given, count)
                await conn.execute("select postbus.subscribe($1, 'reader', 'FROM_BEGINNING')", TOPIC)
        seconds_small, seconds_large = await _in_turns(small, large, plan)
        beside_small, beside_large = await _beside_old_transaction(small, large, plan)
    report.add(
        read_1000_small_backlog_ms=1000 * seconds_small,
        read_1000_large_backlog_ms=1000 * seconds_large,
        read_1000_small_backlog_later_ms=1000 * beside_small,
        read_1000_beside_old_transaction_ms=1000 * beside_large,
    )
    ratio = seconds_small / seconds_large
    report.check("read_large_to_small_backlog_speed_ratio", ratio, ">=", 0.8)
    # The old transaction is in the other database, so the small one shows the speed of the machine at that time.
    report.check("read_old_transaction_speed_ratio", (beside_small / beside_large) / ratio, ">=", 0.8)


async def _in_turns(small: str, large: str, plan: Plan) -> tuple[float, float]:
    """The seconds of a read in each database, by turns."""
    seconds_small: list[float] = []
    seconds_large: list[float] = []
    for _ in range(plan.more_rounds(2)):
        seconds_small += await reads(small, _READS)
        seconds_large += await reads(large, _READS)
    return median(seconds_small), median(seconds_large)


async def reads(dsn: str, count: int) -> list[float]:
    """The seconds of reads, each with the move of the cursor. At the end of the log, the group starts again."""
    times = []
    async with connection(dsn) as conn:
        for _ in range(count):
            began = time.perf_counter()
            is_done = await _read(conn)
            times.append(time.perf_counter() - began)
            if is_done:
                await conn.execute("select postbus.seek($1, 'reader', 'FROM_BEGINNING')", TOPIC)
    return times


async def _read(conn: asyncpg.Connection) -> bool:
    row = await conn.fetchrow(
        "select c.number, c.cursor::text, l.token "
        "from postbus.cursor c join postbus.lane l using (subscription_id, lane) "
        "where c.subscription_id = 1 and c.lane = 0 order by c.number desc limit 1"
    )
    assert row is not None
    rows = await conn.fetch("select * from postbus.read_log($1, '{0}', $2, $3)", TOPIC, row["cursor"], BATCH)
    end = rows[-1]
    await conn.execute(
        "select postbus.advance('{1}', '{0}', array[$1::uuid], array[$2::bigint], array[$3::text], "
        "'{null}', '{null}', '{1000}')",
        row["token"],
        row["number"],
        end["next_cursor"],
    )
    return not end["more"]


async def _beside_old_transaction(small: str, large: str, plan: Plan) -> tuple[float, float]:
    """The same beside an old transaction in the large database; cursors have moved all the time since it began."""
    async with connection(large) as holder:
        transaction = holder.transaction(isolation="repeatable_read")
        await transaction.start()
        await holder.fetchval("select pg_current_xact_id()")
        until = time.monotonic() + plan.log_old_seconds
        while time.monotonic() < until:
            await reads(large, 100)
        seconds = await _in_turns(small, large, plan)
        await transaction.rollback()
    return seconds
