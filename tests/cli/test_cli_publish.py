"""postbus publish"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.helpers import POSTBUS, Cli, environment, open_terminal, read_all
from postbus import Bus


async def test_payload_can_be_an_argument(cli: Cli, bus: Bus) -> None:
    """The command prints the id of the published message."""
    published = await cli("publish", "jobs", '{"a": 1}')

    (row,) = await bus.admin.messages("jobs")
    assert published.done().out == f"{row.id}\n"
    assert (row.payload, row.content_type) == (b'{"a": 1}', "application/json")


@pytest.mark.parametrize("args", [["-"], []])
async def test_payload_can_come_from_stdin(cli: Cli, bus: Bus, args: list[str]) -> None:
    """A dash, or no argument, means stdin; the final line break is not part of a text."""
    await cli("publish", "jobs", *args, given="hello\n")

    (row,) = await bus.admin.messages("jobs")
    assert (row.payload, row.content_type) == (b"hello", "text/plain; charset=utf-8")


@pytest.mark.parametrize(
    ("flag", "given", "stored"),
    [
        (None, b"[1]\n", (b"[1]", "application/json")),
        (None, b"NaN", (b"NaN", "text/plain; charset=utf-8")),
        (None, b'"\\ud800"\n', (b'"\\ud800"', "application/json")),
        (None, b"[1e400]\n", (b"[1e400]", "application/json")),
        (None, b"\xff\n", (b"\xff\n", "application/octet-stream")),
        ("--text", b"[1]\n", (b"[1]", "text/plain; charset=utf-8")),
        ("--json-payload", b'"x"', (b'"x"', "application/json")),
        ("--bytes", b"[1]\n", (b"[1]\n", "application/octet-stream")),
    ],
)
async def test_form_of_the_payload_is_detected(
    cli: Cli, bus: Bus, flag: str | None, given: bytes, stored: tuple[bytes, str]
) -> None:
    """It is JSON, text or bytes, unless a flag says which. JSON is what HTTP accepts as JSON."""
    await cli("publish", "jobs", *filter(None, [flag]), given=given)

    (row,) = await bus.admin.messages("jobs")
    assert (row.payload, row.content_type) == stored


async def test_publish_passes_all_options(cli: Cli, bus: Bus) -> None:
    """The message has the given key, headers, priority, delay and correlation id."""
    options = "--key k --header a=1 --header b=x=y --priority 9 --delay 1h --correlation-id c"

    await cli.quick("publish", "jobs", "1", *options.split())

    (row,) = await bus.admin.messages("jobs")
    assert (row.key, row.priority, row.correlation_id) == ("k", 9, "c")
    assert row.headers == {"a": "1", "b": "x=y"}
    assert row.at is not None
    assert row.at - row.published_at == timedelta(hours=1)


async def test_deliver_at_keeps_the_given_time(cli: Cli, bus: Bus) -> None:
    """A time with an offset is taken as it is."""
    await cli.quick("publish", "jobs", "1", "--deliver-at", "2040-01-31T18:00:00+00:00")

    (row,) = await bus.admin.messages("jobs")
    assert row.at == datetime(2040, 1, 31, 18, tzinfo=UTC)


async def test_repeated_dedup_key_gives_the_same_id(cli: Cli) -> None:
    """A second message with the same deduplication key is the first one."""
    first = await cli.quick("publish", "jobs", "1", "--dedup-key", "d", "--json")
    second = await cli("publish", "jobs", "2", "--dedup-key", "d", "--json")

    assert first.done().json["topic"] == "jobs"
    assert first.json == second.json


async def test_each_line_is_a_message(cli: Cli, bus: Bus) -> None:
    """Empty lines are skipped, and every form is accepted, in order."""
    published = await cli("publish", "jobs", "--lines", given='a\n\n{"b": 2}\r\nc')

    rows = await bus.admin.messages("jobs")
    assert [row.payload for row in rows] == [b"a", b'{"b": 2}', b"c"]
    assert published.done().out.split() == [str(row.id) for row in rows]


async def test_file_of_many_lines_is_published(cli: Cli, bus: Bus) -> None:
    """It may have more lines than a batch; --json prints an object per message."""
    file = cli.cwd / "lines.txt"
    file.write_text("".join(f"{number}\n" for number in range(2500)))

    published = await cli("publish", "jobs", "--lines", "--file", str(file), "--json")

    assert len(published.done().lines) == 2500
    assert (await bus.admin.topic("jobs")).waiting == 2500


async def test_bad_line_is_reported_with_its_number(cli: Cli, bus: Bus) -> None:
    """Batches before the bad line are published, and its own is not."""
    lines = "1\n" * 1500 + "{\n"

    failed = await cli("publish", "jobs", "--lines", "--json-payload", given=lines)

    assert "line 1501: the payload is not JSON" in failed.failed(4).err
    assert "the 1000 messages before its batch are published" in failed.err
    assert (await bus.admin.topic("jobs")).waiting == 1000


MISTAKES = [
    ("jobs {bad --json-payload", 4, "the payload is not JSON"),
    ("jobs hi --text --bytes", 2, "--text and --bytes exclude each other"),
    ("jobs hi --priority 10", 4, "priority 10 is out of range"),
    ("jobs hi --priority high", 2, "--priority"),
    ("jobs hi --header x", 4, "header 'x' is not name=value"),
    ("jobs hi --delay soon", 4, "--delay 'soon' is not a duration"),
    ("jobs hi --delay 99999999d", 4, "delay"),
    ("jobs hi --deliver-at soon", 4, "--deliver-at 'soon' is not a point in time"),
    ("jobs hi --delay 1s --deliver-at 2040-01-01", 4, "both given"),
    ("jobs hi --file nothing.txt", 2, "both given"),
    ("jobs --file nothing.txt", 2, "cannot read nothing.txt"),
    ("jobs hi --lines", 2, "--lines reads stdin"),
    ("jobs --lines --dedup-key d", 2, "--dedup-key"),
    ("bad!name hi", 4, "bad topic name"),
    ("", 2, "TOPIC"),
]


async def test_publish_mistakes_are_reported(cli: Cli) -> None:
    """A message that cannot be published is refused with the reason."""
    for args, code, told in MISTAKES:
        failed = await cli.quick("publish", *args.split())

        assert told in failed.failed(code).err


async def test_too_large_and_too_deep_payloads_are_refused(cli: Cli, bus: Bus) -> None:
    """The error says which limit was exceeded."""
    await bus.admin.create_topic("jobs", max_payload_bytes=100)

    large, deep, deepest = await asyncio.gather(
        cli("publish", "jobs", "x" * 101),
        cli("publish", "jobs", "[" * 101 + "]" * 101),
        cli("publish", "jobs", given="[" * 100_000 + "]" * 100_000),
    )

    assert "the topic accepts 100" in large.failed(4).err
    assert "nested" in deep.failed(4).err
    assert "nested" in deepest.failed(4).err


async def test_file_is_one_payload_without_lines(cli: Cli, bus: Bus, tmp_path: Path) -> None:
    """The whole file is the payload."""
    (tmp_path / "two.txt").write_bytes(b"one\ntwo\n")

    await cli("publish", "jobs", "--file", "two.txt")

    (row,) = await bus.admin.messages("jobs")
    assert row.payload == b"one\ntwo"


async def test_progress_bar_leaves_stdout_alone(cli: Cli) -> None:
    """The ids go to a pipe while the bar is on the terminal."""
    (cli.cwd / "lines.txt").write_text("x\n" * 3000)
    ours, theirs = open_terminal(width=100, height=30)
    process = await asyncio.create_subprocess_exec(
        *POSTBUS, "publish", "jobs", "--lines", "--file", "lines.txt",
        stdin=theirs, stdout=asyncio.subprocess.PIPE, stderr=theirs, cwd=cli.cwd, env=environment(**cli.env),
    )  # fmt: skip
    os.close(theirs)
    shown, (ids, _) = await asyncio.gather(asyncio.to_thread(read_all, ours), process.communicate())

    assert len(ids.split()) == 3000
    assert "publishing to jobs" in shown
    assert "published 3000 messages to jobs" in shown


async def test_publish_continues_when_the_reader_leaves(cli: Cli, bus: Bus) -> None:
    """All lines are published, although nobody reads the ids."""
    ended = await cli.piped("true", "publish", "jobs", "--lines", given=b"x\n" * 3000)

    assert ended.done().err == "published 3000 messages to jobs\n"
    assert (await bus.admin.topic("jobs")).waiting == 3000
