"""postbus tail"""

from __future__ import annotations

import signal
from typing import Any

from cli.helpers import Cli, finish
from postbus import Bus
from postbus._admin.tail import Follower


async def test_the_newest_are_shown_first(cli: Cli, bus: Bus) -> None:
    """-n says with how many of the newest messages it begins, one line each."""
    ids = [await bus.send("jobs", {"n": number}, key="k") for number in range(3)]

    shown = await cli("tail", "jobs", "-n", "2", "--once")

    first, second = shown.done().out.splitlines()
    assert first.split()[0] == str(ids[1])
    assert second.endswith('{"n":2}')


async def test_from_start_as_json(cli: Cli, bus: Bus) -> None:
    """--from-start shows everything there is; --json has an object per line."""
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


async def test_it_follows(cli: Cli, bus: Bus) -> None:
    """What is published while it runs is shown too, and nothing is consumed. Ctrl-C ends it with 130."""
    await bus.send("jobs", "before")
    process = await cli.start("tail", "jobs")
    assert process.stdout is not None
    assert (await process.stdout.readline()).endswith(b"before\n")

    await bus.send("jobs", "after")

    assert (await process.stdout.readline()).endswith(b"after\n")
    process.send_signal(signal.SIGINT)
    ended = await finish(process)
    assert (ended.code, ended.err) == (130, "")
    assert (await bus.admin.topic("jobs"))["waiting"] == 2


async def test_control_characters_stay_harmless(cli: Cli, bus: Bus) -> None:
    """A payload cannot move the cursor, colour the terminal or begin a new line."""
    await bus.send("jobs", "\x1b[31mred\nnext")

    shown = await cli("tail", "jobs", "--once")

    assert shown.done().out.endswith("\\x1b[31mred\\nnext\n")


async def test_a_topic_that_is_not_there(cli: Cli) -> None:
    """Tail refuses a topic that was never used."""
    assert "there is no topic 'gone'" in (await cli("tail", "gone")).failed(3).err


async def test_a_reader_that_leaves(cli: Cli, bus: Bus) -> None:
    """`postbus tail | head -1` ends quietly."""
    async with bus.transaction() as conn:
        await bus.publish_many(conn, "jobs", ["x" * 1000] * 500)

    ended = await cli.piped("head -n 1", "tail", "jobs", "-n", "500")

    assert ended.done().err == ""


async def test_a_late_commit_is_found(bus: Bus, connect: Any) -> None:
    """A message that commits after one with a larger id is shown nevertheless, and each only once."""
    follower = Follower(bus.connect, "jobs")
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    late = await bus.publish(slow, "jobs", "late")
    early = await bus.send("jobs", "early")

    before = [row["id"] async for row in follower.new_messages()]
    await transaction.commit()
    after = [row["id"] async for row in follower.new_messages()]

    assert (before, after) == ([early], [late])


async def test_a_late_commit_to_a_log_is_found(bus: Bus, connect: Any) -> None:
    """The same for a PUB_SUB topic, whose order is that of positions."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    follower = Follower(bus.connect, "events", is_log=True)
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    late = await bus.publish_many(slow, "events", ["late", "later"])
    early = await bus.send("events", "early")

    before = [row["id"] async for row in follower.new_messages()]
    await transaction.commit()
    after = [row["id"] async for row in follower.new_messages()]

    assert (before, after) == ([early], late)
