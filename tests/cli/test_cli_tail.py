"""postbus tail"""

from __future__ import annotations

import signal
from typing import Any

from cli.helpers import Cli, finish
from postbus import Bus
from postbus._admin.tail import TopicTail


async def test_tail_shows_the_newest_first(cli: Cli, bus: Bus) -> None:
    """-n sets the number of messages to begin with, one line each."""
    ids = [await bus.send("jobs", {"n": number}, key="k") for number in range(3)]

    shown = await cli("tail", "jobs", "-n", "2", "--once")

    first, second = shown.done().out.splitlines()
    assert first.split()[0] == str(ids[1])
    assert second.endswith('{"n":2}')


async def test_tail_from_start_can_print_json(cli: Cli, bus: Bus) -> None:
    """--from-start shows all messages; --json prints an object per line."""
    await bus.send("jobs", {"n": 1}, headers={"h": "v"})
    await bus.send("jobs", "line one\nline two")
    await bus.send("jobs", b"\xff", delay=60)

    shown = await cli("tail", "jobs", "--from-start", "--once", "--json")

    found = shown.done().lines
    assert [one.get("payload") for one in found] == [{"n": 1}, "line one\nline two", None]
    assert (found[0]["headers"], found[2]["payload_base64"], found[2]["state"]) == (
        {"h": "v"},
        "/w==",
        "scheduled",
    )


async def test_tail_follows_the_queue(cli: Cli, bus: Bus) -> None:
    """New messages are shown too, and none is consumed. Ctrl-C ends it with 130."""
    await bus.send("jobs", "before")
    process = await cli.start("tail", "jobs")
    assert process.stdout is not None
    assert (await process.stdout.readline()).endswith(b"before\n")

    await bus.send("jobs", "after")

    assert (await process.stdout.readline()).endswith(b"after\n")
    process.send_signal(signal.SIGINT)
    ended = await finish(process)
    assert (ended.code, ended.err) == (130, "")
    assert (await bus.admin.topic("jobs")).waiting == 2


async def test_tail_escapes_control_characters(cli: Cli, bus: Bus) -> None:
    """A payload cannot move the cursor, colour the terminal or begin a new line."""
    await bus.send("jobs", "\x1b[31mred\nnext")

    shown = await cli("tail", "jobs", "--once")

    assert shown.done().out.endswith("\\x1b[31mred\\nnext\n")


async def test_tail_refuses_an_unused_topic(cli: Cli) -> None:
    """The exit code is 3."""
    assert "there is no topic 'gone'" in (await cli("tail", "gone")).failed(3).err


async def test_tail_ends_quietly_when_the_reader_leaves(cli: Cli, bus: Bus) -> None:
    """`postbus tail | head -1` prints no error."""
    async with bus.transaction() as conn:
        await bus.publish_many(conn, "jobs", ["x" * 1000] * 500)

    ended = await cli.piped("head -n 1", "tail", "jobs", "-n", "500")

    assert ended.done().err == ""


async def test_tail_finds_a_late_commit(bus: Bus, connect: Any) -> None:
    """A message that commits after one with a larger id is shown, and each only once."""
    follower = TopicTail(bus.connect, "jobs")
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    late = await bus.publish(slow, "jobs", "late")
    early = await bus.send("jobs", "early")

    before = [row.id async for row in follower.new_messages()]
    await transaction.commit()
    after = [row.id async for row in follower.new_messages()]

    assert (before, after) == ([early], [late])


async def test_tail_finds_a_late_commit_of_a_log(bus: Bus, connect: Any) -> None:
    """A PUB_SUB topic is followed by positions."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    follower = TopicTail(bus.connect, "events", is_log=True)
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    late = await bus.publish_many(slow, "events", ["late", "later"])
    early = await bus.send("events", "early")

    before = [row.id async for row in follower.new_messages()]
    await transaction.commit()
    after = [row.id async for row in follower.new_messages()]

    assert (before, after) == ([early], late)
