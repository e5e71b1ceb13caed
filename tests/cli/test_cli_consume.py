"""postbus consume"""

from __future__ import annotations

import asyncio
import json
import os
import signal

from cli.helpers import Cli, deliver, finish
from postbus import Bus


async def test_consume_prints_and_acknowledges(cli: Cli, bus: Bus) -> None:
    """Each message is printed and then gone, and --max ends the command."""
    await bus.send("jobs", {"n": 1}, key="k")
    await bus.send("jobs", {"n": 2})

    consumed = await cli("consume", "jobs", "--max", "1")

    assert consumed.done().out.endswith('k             {"n":1}\n')
    assert (await bus.admin.topic("jobs")).waiting == 1


async def test_consume_never_exceeds_max(cli: Cli, bus: Bus) -> None:
    """No message beyond --max is touched, whatever the concurrency."""
    async with bus.transaction() as conn:
        await bus.publish_many(conn, "jobs", range(20))

    consumed = await cli("consume", "jobs", "--max", "7", "--concurrency", "5", "--json")

    assert sorted(one["payload"] for one in consumed.done().lines) == list(range(7))
    left = await bus.admin.messages("jobs")
    assert {(row.state, row.attempts) for row in left} == {("waiting", 0)}
    assert len(left) == 13


async def test_consume_ends_after_the_idle_time(cli: Cli, bus: Bus) -> None:
    """It ends when nothing came for a while, with all available messages consumed."""
    await bus.send("jobs", b"\xff")

    consumed = await cli("consume", "jobs", "--idle", "500ms", "--json")

    (message,) = consumed.done().lines
    assert (message["payload_base64"], message["attempt"]) == ("/w==", 1)
    assert (await bus.admin.topic("jobs")).waiting == 0


async def test_first_ctrl_c_drains_consume(cli: Cli, bus: Bus) -> None:
    """The running command finishes and its message is acknowledged. The exit code is 0."""
    await bus.send("jobs", "x")
    os.mkfifo(cli.cwd / "gate")
    process = await cli.start("consume", "jobs", "--exec", "echo begun; cat gate; echo ended")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"

    await deliver(process, signal.SIGINT)
    await asyncio.to_thread((cli.cwd / "gate").write_text, "open\n")

    ended = (await finish(process)).done()
    assert (ended.out, ended.err) == ("open\nended\n", "handled 1 message\n")
    assert await bus.admin.messages("jobs") == []


async def test_second_ctrl_c_aborts_consume(cli: Cli, bus: Bus) -> None:
    """The running command is killed. The exit code is 130, and the message is released at once."""
    await bus.send("jobs", "x")
    process = await cli.start("consume", "jobs", "--exec", "echo begun; exec sleep 1000")
    assert process.stdout is not None
    await process.stdout.readline()

    await deliver(process, signal.SIGINT)
    await deliver(process, signal.SIGINT)

    assert await process.wait() == 130
    assert await process.stdout.read() == b""  # nobody holds the pipe any more: the command is gone
    found = await bus.admin.topic("jobs")
    assert (found.leased, found.waiting) == (0, 1)


async def test_exec_passes_the_message_to_the_command(cli: Cli, bus: Bus) -> None:
    """The payload is on stdin, and the rest in the environment."""
    message_id = await bus.send("jobs", {"n": 1}, key="k", headers={"h": "v"})
    command = 'cat; echo " $POSTBUS_ID $POSTBUS_TOPIC $POSTBUS_KEY $POSTBUS_ATTEMPT $POSTBUS_HEADERS"'

    consumed = await cli("consume", "jobs", "--exec", command, "--max", "1")

    assert consumed.done().out == f'{{"n":1}} {message_id} jobs k 1 {{"h": "v"}}\n'


async def test_exit_codes_of_exec_are_outcomes(cli: Cli, bus: Bus) -> None:
    """Exit code 0 acknowledges, 65 makes a dead letter, 75 and others retry with stderr as the error."""
    await bus.admin.create_topic("jobs", retry_initial=3600, retry_max=3600)
    for code in (0, 65, 75, 1):
        await bus.send("jobs", code)
    command = 'read code; echo "said $code" >&2; exit $code'

    consumed = await cli("consume", "jobs", "--exec", command, "--max", "4", "--json")

    told = {one["exit_code"]: one for one in consumed.done().lines}
    assert {code: one["outcome"] for code, one in told.items()} == {
        0: "acked",
        65: "dead",
        75: "retried",
        1: "retried",
    }
    assert told[0]["stderr"] == "said 0\n"
    left = {row.payload: row for row in await bus.admin.messages("jobs")}
    assert {payload: row.state for payload, row in left.items()} == {
        b"65": "dead",
        b"75": "retrying",
        b"1": "retrying",
    }
    assert left[b"75"].last_error == "said 75\nthe command ended with exit code 75"
    (dead,) = await bus.admin.dead_letters("jobs")
    assert (dead.reason, dead.last_error) == ("said 65", "said 65\n")


async def test_exec_of_a_missing_command_costs_no_attempt(cli: Cli, bus: Bus) -> None:
    """A typo in --exec ends the command at once."""
    await bus.send("jobs", 1)

    failed = await cli("consume", "jobs", "--exec", "no-such-command")

    assert "the command cannot be run" in failed.failed(1).err
    (row,) = await bus.admin.messages("jobs")
    assert (row.state, row.attempts) == ("waiting", 0)


async def test_consume_releases_messages_that_nobody_reads(cli: Cli, bus: Bus) -> None:
    """When the reader of stdout leaves, unwritten messages are released untouched."""
    async with bus.transaction() as conn:
        await bus.publish_many(conn, "jobs", ["x" * 10_000] * 50)

    ended = await cli.piped("head -n 1", "consume", "jobs")

    assert "Traceback" not in ended.done().err
    left = await bus.admin.messages("jobs")
    assert left
    assert {(row.state, row.attempts) for row in left} == {("waiting", 0)}


async def test_consume_waits_for_an_unused_topic(cli: Cli, bus: Bus) -> None:
    """A later message to the topic is printed."""
    process = await cli.start("consume", "jobs", "--max", "1", "--json")
    await bus.send("jobs", "hello")

    consumed = await finish(process)

    assert json.loads(consumed.done().out)["payload"] == "hello"


async def test_consume_refuses_bad_options(cli: Cli) -> None:
    """Numbers out of range are usage errors."""
    for args in (["--max", "0"], ["--concurrency", "0"], ["--max", "x"]):
        (await cli.quick("consume", "jobs", *args)).failed(2)
    assert "not a duration" in (await cli.quick("consume", "jobs", "--idle", "-1")).failed(4).err
