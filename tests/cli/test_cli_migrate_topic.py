"""postbus topics migrate"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from cli.helpers import Cli, finish
from postbus import Bus
from support.eventually import eventually
from support.running import running


async def test_migrate_dry_run_reports_the_queue(cli: Cli, bus: Bus) -> None:
    """It reports the due and scheduled messages in the queue, and options that a log does not have."""
    await bus.send("jobs", 1)
    await bus.send("jobs", 2, delay=3600)

    told = (await cli("topics", "migrate", "jobs", "--to", "PUB_SUB", "--group", "g", "--dry-run")).done()
    as_json = (await cli.quick("topics", "migrate", "jobs", "--to", "PUB_SUB", "--dry-run", "--json")).done().json

    assert "would leave 1 message in the queue of jobs" in told.err
    assert "1 message for later" in told.err
    assert "delays or priorities" in told.err
    assert as_json["left"] == {"waiting": 1, "retrying": 0, "leased": 0, "scheduled": 1, "prioritised": 0}
    assert (await bus.admin.topic("jobs")).semantics == "QUEUE"


async def test_migrate_waits_for_the_queue(cli: Cli, bus: Bus, conn: Any) -> None:
    """A consumer of the queue empties it, and then the groups go on."""
    await bus.send("jobs", 1)
    handled: list[int] = []

    @bus.subscribe("jobs")
    async def handle(n: int) -> None:
        handled.append(n)

    process = await cli.start("topics", "migrate", "jobs", "--to", "PUB_SUB", "--group", "old", "--group", "new")

    async def has_looked() -> None:
        assert await conn.fetchval("select users is not null from postbus.moving")

    await eventually(has_looked)
    assert [group.state for group in await bus.admin.groups("jobs")] == ["PAUSED", "PAUSED"]
    async with running(bus):
        out, err = await process.communicate()
    assert process.returncode == 0, err
    assert b"not done yet: 1 waiting" in err
    assert out == b"moved jobs: its queue is empty, and 2 groups went on\n"
    assert [group.state for group in await bus.admin.groups("jobs")] == ["ACTIVE", "ACTIVE"]
    assert handled == [1]


async def test_migrate_with_hand_over_needs_no_consumer(cli: Cli, bus: Bus) -> None:
    """Messages in the queue go to the group, and the move ends at once."""
    await bus.send("jobs", 1)
    moved = await cli("topics", "migrate", "jobs", "--to", "PUB_SUB", "--group", "g", "--hand-over", "--json")
    assert moved.done().json["ended_at"]
    assert (await bus.admin.group("jobs", "g")).retrying == 1


async def test_migrate_with_no_wait_returns_at_once(cli: Cli, bus: Bus) -> None:
    """The group stays paused, and `show` lists what is left in the queue."""
    await bus.send("jobs", 1)
    (await cli("topics", "migrate", "jobs", "--to", "PUB_SUB", "--group", "g", "--no-wait")).done()
    assert (await bus.admin.group("jobs", "g")).state == "PAUSED"
    shown = (await cli.quick("topics", "show", "jobs")).done().out
    assert "waiting" in shown, "what is left in the queue is shown"
    assert "leased" not in shown


async def test_tracking_can_be_changed_by_migrate(cli: Cli, bus: Bus) -> None:
    """It can change on a PUB_SUB topic, or together with the move."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await bus.admin.create_topic("jobs")
    dry = await cli.quick("topics", "migrate", "events", "--tracking", "OFFSET_WATERMARK", "--dry-run")
    assert dry.done().out == "would track events: OFFSET_WATERMARK\n"
    assert (await bus.admin.topic("events")).tracking == "REFERENCE_COUNTING"
    (await cli.quick("topics", "migrate", "events", "--tracking", "OFFSET_WATERMARK")).done()
    assert (await bus.admin.topic("events")).tracking == "OFFSET_WATERMARK"
    (await cli.quick("topics", "migrate", "jobs", "--to", "PUB_SUB", "--tracking", "OFFSET_WATERMARK")).done()
    assert (await bus.admin.topic("jobs")).tracking == "OFFSET_WATERMARK"


async def test_impossible_migrations_are_refused_with_a_remedy(cli: Cli, bus: Bus) -> None:
    """These are a way back, a finished move, no change at all, and a missing topic."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await bus.admin.create_topic("jobs")
    back = await cli.quick("topics", "migrate", "events", "--to", "QUEUE")
    assert "create another topic" in back.failed(2).err
    assert "already" in (await cli.quick("topics", "migrate", "events", "--to", "PUB_SUB")).failed(4).err
    assert "nothing to do" in (await cli.quick("topics", "migrate", "events")).failed(2).err
    assert "--to PUB_SUB" in (await cli.quick("topics", "migrate", "jobs")).failed(2).err
    unknown = await cli.quick("topics", "migrate", "nowhere", "--to", "PUB_SUB")
    assert unknown.code not in (0, 2)
    assert "there is no topic" in unknown.err
    bad = await cli.quick("topics", "migrate", "jobs", "--to", "PUB_SUB", "--group", "a b")
    assert bad.code != 0
    assert "group name" in bad.err
    assert "tracking" in (await cli.quick("topics", "migrate", "events", "--tracking", "SOME")).failed(2).err
    assert (await bus.admin.topic("jobs")).semantics == "QUEUE"


async def test_unconsumed_queue_can_be_handed_over_later(cli: Cli, bus: Bus, conn: Any) -> None:
    """A waiting command says that no process consumes; it can be repeated, and the groups begin only at the end."""
    await conn.execute("select postbus.heartbeat('dead', 'host', 2, '{jobs}')")
    await conn.execute("update postbus.worker set seen_at = seen_at - interval '2 minutes'")
    await bus.send("jobs", 1)
    await bus.send("jobs", 2, delay=3600)
    migrate = ("topics", "migrate", "jobs", "--to", "PUB_SUB", "--group", "old")
    process = await cli.start(*migrate)
    assert process.stderr is not None
    async with asyncio.timeout(20):
        while b"no process consumes jobs" not in (line := await process.stderr.readline()):
            assert line
    assert b"postbus worker" in line  # and no command that would settle messages by printing them
    process.send_signal(signal.SIGINT)
    stopped = await finish(process)
    assert stopped.code == 130
    assert "repeat the command" in stopped.err

    assert "waits for the queue" in (await cli.quick("groups", "list")).done().out
    assert "migrate jobs --to PUB_SUB --hand-over" in (await cli.quick("doctor")).done().out
    assert "let its consumers handle the rest" in (await cli.quick("groups", "resume", "jobs", "old")).failed(4).err
    assert (await cli.quick(*migrate, "--group", "new", "--hand-over")).failed(3).err, "it was not named before"
    assert (await cli.quick(*migrate, "--dry-run", "--json")).done().json["left"]["waiting"] == 1

    again = (await cli.quick(*migrate, "--hand-over", "--tracking", "OFFSET_WATERMARK")).done()
    assert again.out == "moved jobs: its queue is empty, and 1 group went on\n"
    group = await bus.admin.group("jobs", "old")
    assert (group.state, group.retrying, group.waits_for_queue) == ("ACTIVE", 1, False)
    assert (await bus.admin.topic("jobs")).tracking == "OFFSET_WATERMARK"
    assert "already" in (await cli.quick(*migrate)).failed(4).err


async def test_rest_of_the_queue_can_be_consumed(cli: Cli, bus: Bus) -> None:
    """`postbus consume` empties it, as long as there is something."""
    await bus.send("jobs", 1)
    told = (await cli("topics", "migrate", "jobs", "--to", "PUB_SUB", "--no-wait")).done()
    assert "in the queue of jobs" in told.err

    assert (await cli("consume", "jobs", "--max", "1", "--json")).done().json["payload"] == 1
    assert "consumed by groups" in (await cli.quick("consume", "jobs", "--max", "1")).failed(4).err
