"""The scan floor hides no message, in whatever order transactions commit."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from support.fix_database import Connect
from support.queue_sql import ack, claim, payloads, publish


async def test_late_commit_is_found_behind_the_scan_floor(connect: Connect) -> None:
    """A message of a transaction that was open when the floor was taken is found after its commit."""
    slow, quick, worker = await connect(), await connect(), await connect()
    late = slow.transaction()
    await late.start()
    await publish(slow, "late")
    await publish(quick, "early 1", "early 2")

    first = await claim(worker, 10)
    await late.commit()
    second = await claim(worker, 10, scan_floor=first["next_scan_floor"])

    assert payloads(first) == ["early 1", "early 2"]
    assert payloads(second) == ["late"]


async def test_late_commit_is_found_behind_many_scan_floors(connect: Connect) -> None:
    """The open transaction stays on the list, however many claims have passed."""
    slow, quick, worker = await connect(), await connect(), await connect()
    late = slow.transaction()
    await late.start()
    await publish(slow, "late")
    floor = None
    for n in range(20):
        await publish(quick, f"early {n}")
        claimed = await claim(worker, 10, scan_floor=floor)
        assert payloads(claimed) == [f"early {n}"]
        floor = claimed["next_scan_floor"]
        floor = (await claim(worker, 10, scan_floor=floor))["next_scan_floor"]  # finds nothing
    await late.commit()

    assert payloads(await claim(worker, 10, scan_floor=floor)) == ["late"]


async def test_late_publish_with_an_early_transaction_id_is_found(connect: Connect) -> None:
    """A transaction may get its id long before it publishes, above the floor by message and below it by id."""
    slow, quick, worker = await connect(), await connect(), await connect()
    late = slow.transaction()
    await late.start()
    await slow.fetchval("select pg_current_xact_id()")
    await publish(quick, *(f"early {n}" for n in range(5)))
    first = await claim(worker, 3)
    await publish(slow, "late")
    second = await claim(worker, 10, scan_floor=first["next_scan_floor"])
    await late.commit()

    third = await claim(worker, 10, scan_floor=second["next_scan_floor"])

    assert payloads(second) == ["early 3", "early 4"]
    assert payloads(third) == ["late"]


async def test_more_late_messages_than_a_claim_takes_are_all_found(connect: Connect) -> None:
    """A late transaction with many messages is consumed in several claims, with newer messages in between."""
    slow, quick, worker = await connect(), await connect(), await connect()
    late = slow.transaction()
    await late.start()
    await publish(slow, *(f"late {n}" for n in range(25)))
    await publish(quick, "early")
    floor = (await claim(worker, 10))["next_scan_floor"]
    await late.commit()
    await publish(quick, "new")

    found = []
    while (claimed := await claim(worker, 10, scan_floor=floor))["token"] is not None:
        found += payloads(claimed)
        floor = claimed["next_scan_floor"]

    assert sorted(found) == sorted([*(f"late {n}" for n in range(25)), "new"])


async def test_savepoints_and_prepared_transactions_are_found(connect_alone: Connect) -> None:
    """A message counts with its whole transaction, also if that was prepared and is committed by another session."""
    slow, quick, worker = await connect_alone(), await connect_alone(), await connect_alone()
    await slow.execute("begin")
    await slow.execute("savepoint s")
    await publish(slow, "prepared")
    await slow.execute("release s")
    await slow.execute("savepoint r")
    await publish(slow, "undone")
    await slow.execute("rollback to r")
    await slow.execute("prepare transaction 'floor'")
    await publish(quick, "early")
    first = await claim(worker, 10)
    await quick.execute("commit prepared 'floor'")

    assert payloads(first) == ["early"]
    assert payloads(await claim(worker, 10, scan_floor=first["next_scan_floor"])) == ["prepared"]


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_publishers_of_any_isolation_are_found(connect: Connect, isolation: Any) -> None:
    """The publisher's isolation level makes no difference."""
    slow, worker = await connect(), await connect()
    async with slow.transaction(isolation=isolation):
        await publish(slow, "one")
        first = await claim(worker, 10)

    assert payloads(await claim(worker, 10, scan_floor=first["next_scan_floor"])) == ["one"]


async def test_delayed_message_of_a_late_commit_is_found(connect: Connect) -> None:
    """It was due before its transaction committed."""
    slow, quick, worker = await connect(), await connect(), await connect()
    late = slow.transaction()
    await late.start()
    await publish(slow, "late", delay=timedelta(milliseconds=1))
    await publish(quick, "early", delay=timedelta(milliseconds=1))
    soon = await quick.fetchval("select clock_timestamp() + interval '1 min'")
    first = await claim(worker, 10, as_of=soon)
    await late.commit()

    second = await claim(worker, 10, scan_floor=first["next_scan_floor"], as_of=soon + timedelta(seconds=1))

    assert payloads(first) == ["early"]
    assert payloads(second) == ["late"]


async def test_clock_set_back_hides_no_delayed_message(connect: Connect) -> None:
    """Messages delayed after the clock was set back are delivered when due by the new time."""
    conn = await connect()
    future = await conn.fetchval("select clock_timestamp() + interval '1 day'")
    floor = (await claim(conn, 10, as_of=future))["next_scan_floor"]
    await publish(conn, "after", delay=timedelta(minutes=1))
    now = await conn.fetchval("select clock_timestamp()")

    early = await claim(conn, 10, scan_floor=floor, as_of=now)
    due = await claim(conn, 10, scan_floor=early["next_scan_floor"], as_of=now + timedelta(minutes=2))

    assert early["token"] is None
    assert payloads(due) == ["after"]


async def test_rows_skipped_by_one_claimer_are_found_by_another(connect: Connect) -> None:
    """Rows that one claimer locked and left, because of its byte limit, stay above the floor of another."""
    a, b = await connect(), await connect()
    await publish(a, *(f"{n}" * 1000 for n in range(5)))
    async with a.transaction():
        first = await claim(a, 5, max_bytes=1500)  # locks five, takes two
        await publish(b, "new")
        second = await claim(b, 5)

    assert (len(first["ids"]), payloads(second)) == (2, ["new"])
    assert len((await claim(b, 5, scan_floor=second["next_scan_floor"]))["ids"]) == 3


async def test_rows_of_a_failed_claim_are_found(connect: Connect) -> None:
    """A claim that is rolled back hides nothing from claimers that skipped its rows."""
    a, b = await connect(), await connect()
    await publish(a, "one", "two")
    claiming = a.transaction()
    await claiming.start()
    await claim(a, 1)
    second = await claim(b, 5)
    await claiming.rollback()

    assert payloads(second) == ["two"]
    assert payloads(await claim(b, 5, scan_floor=second["next_scan_floor"])) == ["one"]


async def test_release_in_the_claiming_transaction_is_found(connect: Connect) -> None:
    """The transaction's own snapshot does not show its release, but a later claim finds the message."""
    conn = await connect()
    await publish(conn, "one", "two", "three")
    async with conn.transaction():
        first = await claim(conn, 1)
        await conn.execute("select postbus.release($1, $2)", first["token"], first["ids"])
        second = await claim(conn, 1, scan_floor=first["next_scan_floor"])

    rest = await claim(conn, 5, scan_floor=second["next_scan_floor"])
    assert sorted(payloads(second) + payloads(rest)) == ["one", "three", "two"]


class _Writers:
    """Writers whose transactions overlap in every way: early ids, savepoints, rollbacks, long ones."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self.committed: set[str] = set()
        self.running = 0

    async def write(self, name: int, rounds: int) -> None:
        conn = await self._connect()
        rng = random.Random(name)
        for n in range(rounds):
            transaction = conn.transaction(isolation=rng.choice(["read_committed", "repeatable_read"]))
            await transaction.start()
            if rng.random() < 0.5:
                await conn.fetchval("select pg_current_xact_id()")
                await asyncio.sleep(rng.random() * 0.01)
            texts = [f"{name}-{n}-{k}" for k in range(rng.choice([1, 1, 2, 30]))]
            for text in texts:
                await publish(conn, text, priority=rng.choice([4, 4, 4, 2, 9]))
                if rng.random() < 0.1:
                    await asyncio.sleep(rng.random() * 0.005)
            if rng.random() < 0.05:
                await asyncio.sleep(0.2)
            if rng.random() < 0.15:
                await transaction.rollback()
            else:
                await transaction.commit()
                self.committed.update(texts)
        self.running -= 1


async def _consume(connect: Connect, writers: _Writers, got: list[str], size: int) -> None:
    conn = await connect()
    floor, idle = None, 0
    while idle < 3:
        claimed = await claim(conn, size, scan_floor=floor)
        floor = claimed["next_scan_floor"]
        if claimed["token"] is None:
            idle += not writers.running
            await asyncio.sleep(0.002)
        else:
            got += payloads(claimed)
            await ack(conn, claimed)


async def test_nothing_is_lost_or_doubled_among_many_writers_and_claimers(connect: Connect) -> None:
    """Every committed message is claimed exactly once, although no claimer ever drops its floor."""
    writers, got = _Writers(connect), list[str]()
    writers.running = 8
    await asyncio.gather(
        *(writers.write(name, 60) for name in range(8)),
        *(_consume(connect, writers, got, size) for size in (1, 7, 50)),
    )

    assert len(got) == len(set(got)), "doubled"
    assert set(got) == writers.committed, "lost, or invented"


async def _consume_by_id(connect: Connect, writers: _Writers, got: list[str]) -> None:
    conn = await connect()
    last, idle = 0, 0
    while idle < 3:
        rows = await conn.fetch("select id, payload from postbus.queued where id > $1 order by id limit 7", last)
        if rows:
            last = rows[-1]["id"]
            got += [row["payload"].decode() for row in rows]
        else:
            idle += not writers.running
            await asyncio.sleep(0.002)


async def test_check_catches_a_scan_floor_by_id(connect: Connect) -> None:
    """The same writers, read by `id > last`, lose messages, so the test above can fail."""
    writers, got = _Writers(connect), list[str]()
    writers.running = 8
    await asyncio.gather(*(writers.write(name, 60) for name in range(8)), _consume_by_id(connect, writers, got))

    assert set(got) != writers.committed
