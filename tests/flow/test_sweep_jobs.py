"""Sweeping jobs in processes: they run by themselves, follow the settings, and report failures."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from postbus import Bus
from postbus._maintenance.sweeper import Sweeper
from support.eventually import eventually
from support.grouping import collect, create_log
from support.running import running

JOBS = {"return_expired", "sweep", "sweep_log", "detect_dead", "drop_partitions", "subscriptions"}


async def test_every_job_runs_in_a_process(bus: Bus, conn: Any) -> None:
    """Each job is recorded once, however often it checks."""
    await create_log(bus)
    collect(bus)

    async def have_all_run() -> None:
        rows = await conn.fetch("select job, runs from postbus.sweep_jobs")
        assert {row["job"] for row in rows} == JOBS
        assert {row["runs"] for row in rows} == {1}

    async with running(bus):
        await eventually(have_all_run)
        assert (await bus.admin.sweep_health()).healthy


async def test_two_processes_follow_the_settings_of_the_database(bus: Bus, conn: Any) -> None:
    """A job done by one process is not due for the other; with more left, it continues at once until nothing is."""
    await bus.admin.create_topic("q", retention="1s")
    await bus.admin.set_sweeping(batch_size=2)
    store = await bus.connect()
    first, second = Sweeper(store), Sweeper(store)
    for sweeper in (first, second):
        assert await sweeper.sweep() is None
    await conn.execute(
        "insert into postbus.finished (topic_id, finished_at, member, messages) "
        "select postbus.topic_id('q'), now() - interval '1 hour', 'm', '{}' from generate_series(1, 5)"
    )
    for sweeper in (first, second):
        assert await sweeper.sweep() is None, "not due"
    assert await conn.fetchval("select count(*) from postbus.finished") == 5
    await conn.execute("update postbus.sweep_job set started_at = started_at - interval '6 minutes'")
    assert await first.sweep() is not None
    assert await second.sweep() is None
    assert await conn.fetchval("select count(*) from postbus.finished") == 3
    while await first.sweep() is not None:
        pass
    assert await conn.fetchval("select count(*) from postbus.finished") == 0


@pytest.mark.parametrize("job", ["sweep", "sweep_log", "return_expired", "subscriptions"])
async def test_failing_job_is_recorded_and_ends_the_process(bus: Bus, conn: Any, job: str) -> None:
    """A bug is not retried in silence: the health report shows it until the job succeeds again."""
    await create_log(bus)
    function = "sweep_subscriptions" if job == "subscriptions" else job
    oid = await conn.fetchval("select oid from pg_proc where proname = $1", function)
    definition = await conn.fetchval("select pg_get_functiondef($1)", oid)
    head = definition[: definition.rindex("AS $function$")].replace("LANGUAGE sql", "LANGUAGE plpgsql")
    broken = head + "AS $function$ begin raise 'broken'; end $function$"
    await conn.execute(broken)
    collect(bus)
    with pytest.raises(asyncpg.RaiseError, match="broken"):
        async with asyncio.timeout(10):
            await bus.run()
    reason = (await bus.admin.sweep_health()).reason
    assert reason is not None
    assert "failed: broken" in reason
    assert reason.startswith(job)
    await conn.execute(definition)
    await bus.admin.sweep()
    assert (await bus.admin.sweep_health()).healthy
