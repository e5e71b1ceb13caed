"""postbus sweep"""

from __future__ import annotations

import signal
from datetime import timedelta, timezone
from typing import Any

from cli.helpers import Cli, deliver, finish
from postbus import Bus
from postbus.cli._doctor import schema
from postbus.cli._doctor.finding import Level, Target
from support.eventually import eventually
from support.running import running


async def test_sweep_settings_are_shown_and_set(cli: Cli, bus: Bus) -> None:
    """A preset, single values or both can be given, and omitted values stay."""
    shown = (await cli.quick("sweep", "set", "--preset", "high-throughput", "--interval", "90s", "--json")).done().json
    assert (shown["interval"], shown["batch_size"], shown["subscription_retention"]) == (90, 50_000, 7 * 86400)
    given = ("--detection-interval", "30s", "--heartbeat-timeout", "10m", "--subscription-retention", "2d",
             "--audit-retention", "40d")  # fmt: skip
    text = (await cli.quick("sweep", "set", "--batch-size", "77", *given)).done().out
    assert text.split() == [
        "interval", "1m", "30s", "batch_size", "77", "detection_interval", "30s", "heartbeat_timeout", "10m",
        "subscription_retention", "2d", "audit_retention", "40d",
    ]  # fmt: skip
    assert (await bus.admin.sweeping()).batch_size == 77
    assert (await bus.admin.set_sweeping("critical", batch_size=5)).batch_size == 5


async def test_bad_sweep_settings_are_refused(cli: Cli) -> None:
    """The remedy lists the presets or the allowed range."""
    refused = (await cli.quick("sweep", "set", "--preset", "reckless", "--json")).failed(4)
    assert "high_throughput" in refused.error["remedy"]
    assert "5 seconds" in (await cli.quick("sweep", "set", "--interval", "1s")).failed(4).err
    assert "not a duration" in (await cli.quick("sweep", "set", "--interval", "soon")).failed(4).err
    assert "nothing to set" in (await cli.quick("sweep", "set")).failed(2).err


async def test_sweep_run_removes_expired_data(cli: Cli, bus: Bus, conn: Any) -> None:
    """It runs at once, whether it is due or not."""
    await bus.admin.create_topic("q", retention="1s")
    await bus.admin.create_topic("log", semantics="PUB_SUB")
    await bus.send("q", 1)
    done: list[int] = []

    @bus.subscribe("q")
    async def handle(n: int) -> None:
        done.append(n)

    async def is_finished() -> None:
        assert await conn.fetchval("select count(*) from postbus.finished") == 1

    async with running(bus):
        await eventually(is_finished)
    await conn.execute("update postbus.finished set finished_at = finished_at - interval '1 minute'")
    removed = (await cli.quick("sweep", "run", "--json")).done().json
    assert removed == {
        "messages_returned": 0,
        "finished_rows": 1,
        "dedup_keys": 0,
        "inbox_records": 0,
        "groups_died": 0,
        "partitions": 0,
        "thinned": 0,
        "subscriptions": 0,
    }
    shown = (await cli.quick("sweep", "show", "--json")).done().json
    assert shown["healthy"]
    assert shown["settings"]["interval"] == 300
    [swept] = [one for one in shown["jobs"] if one["job"] == "sweep"]
    assert swept["removed_total"] == 1
    text = (await cli.quick("sweep", "show")).done().out
    assert text.split()[:2] == ["state", "healthy"]
    assert {"sweep", "drop_partitions", "subscriptions", "return_expired"} <= set(text.split())


async def test_failed_job_is_reported(cli: Cli, bus: Bus, conn: Any, dsn: str) -> None:
    """The command, the doctor and Python show the reason."""
    assert [one.level for one in await schema.sweeping(Target(dsn, conn))] == [Level.OK]
    await conn.execute("select postbus.note_failure('sweep', 0, 'no space left on device')")
    assert "unhealthy: sweep failed: no space left" in (await cli.quick("sweep", "show")).done().out
    [found] = await schema.sweeping(Target(dsn, conn))
    assert (found.level, found.text) == (Level.WARNING, "sweep failed: no space left on device")
    assert "postbus sweep show" in found.remedy
    assert (await bus.admin.sweep_health()).reason == found.text


async def test_last_failure_is_shown_in_local_time(cli: Cli, bus: Bus, conn: Any) -> None:
    """All times of the table are local."""
    await conn.execute("select postbus.note_failure('sweep', 0, 'no space left on device')")
    cli.env["TZ"] = "KAT-05:45"

    shown = await cli("sweep", "show")

    [failed] = [one.failed_at for one in (await bus.admin.sweep_health()).jobs if one.failed_at]
    local = failed.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert f"{local:%Y-%m-%d %H:%M:%S} no space left on device" in shown.done().out


async def test_sweep_forever_maintains_a_database_without_workers(cli: Cli, bus: Bus, conn: Any) -> None:
    """It closes partitions and detects dead groups, counts as a process, and ends with a signal."""
    await bus.admin.create_topic("log", semantics="PUB_SUB", retention="1h", zero_subscription_retention="1h")
    await bus.send("log", 1)
    await conn.execute("update postbus.log_partition set opened_at = opened_at - interval '1 hour'")
    await conn.execute("update postbus.segment set published_at = published_at - interval '1 hour'")
    overdue = (
        # however recently the server was started
        "select count(*) from postbus.sweep_overdue(clock_timestamp(), '-infinity')"
    )
    assert await conn.fetchval(overdue) == 1

    sweeping = await cli.start("sweep", "--forever")

    async def is_in_order() -> None:
        assert await conn.fetchval(overdue) == 0
        health = await bus.admin.sweep_health()
        assert (health.healthy, health.processes) == (True, 1)

    await eventually(is_in_order, within=30)
    await deliver(sweeping, signal.SIGTERM)
    assert "sweeps until Ctrl-C" in (await finish(sweeping)).done().err
    assert (await bus.admin.sweep_health()).processes == 0


async def test_sweep_without_a_command_shows_help(cli: Cli) -> None:
    """--forever cannot be combined with a command."""
    assert "--forever" in (await cli.quick("sweep")).done().out
    assert "takes no command" in (await cli.quick("sweep", "--forever", "show")).failed(2).err
