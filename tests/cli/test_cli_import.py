"""postbus import"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from cli.helpers import POSTBUS, Cli, environment, open_terminal, read_all
from postbus import Bus
from support.old_outbox import FAN_OUT, SIMPLE, add_messages, add_topic, counts, finish


@pytest.fixture
async def outbox(conn: Any, bus: Bus) -> Any:
    """Create a log with two groups, and a queue."""
    await conn.execute(FAN_OUT)
    await add_topic(conn, mail="ACTIVE", stock="PAUSED", gone="DEAD")
    await add_topic(conn, "q", "QUEUE")
    await add_messages(conn, range(1, 11))
    await add_messages(conn, [11, 12, 13], "q")
    await finish(conn, "mail", [1, 2, 3, 5])
    return conn


async def test_import_reports_what_it_imported(cli: Cli, outbox: Any) -> None:
    """There is a line per topic and group, notes go to stderr, and a second run has nothing to do."""
    first = (await cli("import")).done()
    second = (await cli.quick("import", "outbox", "--layout", "fan-out")).done()

    assert [line.split() for line in first.out.splitlines()] == [
        ["topic", "semantics", "group", "state", "messages", "deferred"],
        ["q", "QUEUE", "3"],
        ["t", "PUB_SUB", "10"],
        ["t", "mail", "ACTIVE", "6", "1"],
        ["t", "stock", "PAUSED", "10", "0"],
        ["carried", "over", "13", "messages", "of", "public.outbox"],
    ]
    assert "note: group gone of t is DEAD" in first.err
    noted = (await cli.quick("audit", "--json", "--action", "import")).done().json
    assert noted
    assert all(one["actor"].startswith("os:") for one in noted)
    assert second.out.splitlines()[-1] == "carried over 0 messages of public.outbox"


async def test_import_shows_a_bar_on_a_terminal(cli: Cli, outbox: Any) -> None:
    """The result goes to stdout all the same."""
    ours, theirs = open_terminal(width=100, height=30)
    process = await asyncio.create_subprocess_exec(
        *POSTBUS, "import", stdout=asyncio.subprocess.PIPE, stderr=theirs, env=environment(**cli.env)
    )
    os.close(theirs)
    seen, (out, _) = await asyncio.gather(asyncio.to_thread(read_all, ours), process.communicate())

    assert process.returncode == 0
    assert "13/13" in seen
    assert out.decode().splitlines()[-1] == "carried over 13 messages of public.outbox"


async def test_import_can_print_json(cli: Cli, outbox: Any) -> None:
    """It prints one object, also with --dry-run, which changes nothing."""
    before = await counts(outbox)

    planned = (await cli.quick("import", "--dry-run", "--only", "t", "--json")).done().json

    assert await counts(outbox) == before
    assert (planned["dry_run"], planned["messages"], planned["not_imported"]) == (True, 10, [])
    (topic,) = planned["topics"]
    assert topic["groups"][0] == {"name": "mail", "state": "ACTIVE", "messages": 6, "deferred": 1}
    done = (await cli.quick("import", "--only", "t", "--json")).done().json
    assert (done["topics"], done["dry_run"]) == (planned["topics"], False)
    assert await outbox.fetchval("select count(*) from postbus.queued") == 0


async def test_import_reports_rows_left_behind(cli: Cli, outbox: Any) -> None:
    """Each one is named with its problem, the exit code is 4, and the others are imported."""
    await outbox.execute("update outbox set payload = to_jsonb(repeat('x', 500)) where topic = 'q' and id > 11")

    told = (await cli("import", "--option", "max-payload-bytes=100")).failed(4)

    assert "carried over 11 messages" in told.out
    assert "stays behind: message 12 of q: the payload has 502 bytes, the topic accepts 100" in told.err


async def test_events_are_imported_to_a_chosen_topic(cli: Cli, bus: Bus, conn: Any) -> None:
    """--topic and --semantics say where the events of a simple outbox go."""
    await conn.execute(SIMPLE)
    await conn.execute(
        "insert into outbox_events (event_type, aggregate_type, aggregate_id, payload_json) "
        "values ('paid', 'order', gen_random_uuid(), '{}')"
    )

    done = (await cli.quick("import", "--topic", "on.{event_type}", "--semantics", "PUB_SUB", "--json")).done().json

    assert done["layout"] == "simple"
    assert [(one["name"], one["semantics"], one["messages"]) for one in done["topics"]] == [("on.paid", "PUB_SUB", 1)]
    assert len(await bus.admin.log("on.paid")) == 1


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["nowhere"], 4, "there is no table nowhere"),
        (["outbox", "--layout", "simple"], 4, "lacks event_type"),
        (["outbox", "--layout", "broad"], 2, "'broad' is not one of 'fan-out', 'simple'"),
        (["--semantics", "LOG"], 2, "'LOG' is not one of 'QUEUE', 'PUB_SUB'"),
        (["a b c"], 4, "there is no table a b c"),
        (["--option", "size=3"], 4, "a topic has no option 'size'"),
        (["--option", "lease"], 2, "is not NAME=VALUE"),
        (["--only", "x"], 4, "has no topic 'x'"),
    ],
)
async def test_import_errors_are_reported_in_plain_words(
    cli: Cli, outbox: Any, args: list[str], code: int, words: str
) -> None:
    """There is no traceback, and nothing has changed."""
    before = await counts(outbox)

    told = (await cli.quick("import", *args)).failed(code)

    assert words in told.err
    assert await counts(outbox) == before
