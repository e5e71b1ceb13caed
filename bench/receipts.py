"""Receipts in a load test: the ledger is made old enough to be folded, and messages are looked up afterwards."""

from __future__ import annotations

import time

import asyncpg

from bench.report import Report

_AGED = """
    insert into postbus.cursor (subscription_id, lane, number, cursor, passed, at, worker)
    select c.subscription_id, c.lane, -age.n, c.cursor, 0, now() - age.n * interval '50 milliseconds', l.holder
      from postbus.current_cursor c
      join postbus.lane l on l.subscription_id = c.subscription_id and l.lane = c.lane
     cross join generate_series(1, 7180) as age (n)
     order by c.subscription_id, c.lane, age.n desc
"""
_SAMPLED = """
    select count(*) filter (where done.groups = $2) as known, count(*) as sampled
      from (select (s.sequence & 8796093022207) * 1024 + (random() * (s.count - 1))::int as id
              from postbus.segment s order by random() limit $1) as chosen
     cross join lateral (select count(*) as groups from postbus.deliveries_of($3, chosen.id) as d
                          where d.status = 'COMPLETED' and d.settled_at is not null and d.worker is not null) as done
"""
_SAMPLE = 200


async def age_ledger(conn: asyncpg.Connection) -> None:
    """Give each lane the ledger rows of almost six minutes of work, so that the first fold comes soon.

    A cursor moves twenty times a second. So the ledger and its folds have their normal size.
    """
    await conn.execute(_AGED)
    await conn.execute("analyze postbus.cursor")


async def measure(conn: asyncpg.Connection, report: Report, *, topic: str, storage: int, groups: int) -> None:
    """Fold the whole ledger into receipts, and ask for some messages which groups had them, and when."""
    folded = await conn.fetchval("select count(*) from postbus.receipt")
    began = time.perf_counter()
    left = await conn.fetchval("select postbus.fold_cursors($1, now() + interval '6 minutes')", storage)
    seconds = time.perf_counter() - began
    kept = await conn.fetchval("select count(*) from postbus.receipt")
    began = time.perf_counter()
    found = await conn.fetchrow(_SAMPLED, _SAMPLE, groups, topic)
    asking = time.perf_counter() - began
    assert found is not None
    report.add(
        receipts=kept,
        receipts_folded_during_load=folded,
        fold_per_s=left / seconds,
        deliveries_of_ms=1000 * asking / max(found["sampled"], 1),
        sampled_messages=found["sampled"],
    )
    report.check("receipts_folded_during_load", folded, ">=", 1)
    report.check("receipts_to_ledger_rows_ratio", (kept - folded) / max(left, 1), ">=", 1)
    report.check("sampled_with_all_receipts_ratio", found["known"] / max(found["sampled"], 1), ">=", 1)
