"""postbus topics …"""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from cli.helpers import Cli
from postbus import Bus, TopicOptions
from postbus.cli.topics import TOPIC_OPTIONS


def test_command_line_knows_every_topic_option() -> None:
    """The options of topics and of the command are the same."""
    assert {option.name for option in TOPIC_OPTIONS} == get_type_hints(TopicOptions).keys()


GIVEN = {
    "semantics": "QUEUE",
    "ordered": True,
    "lease": 60.0,
    "max_attempts": 5,
    "retry_initial": 2.0,
    "retry_factor": 3.0,
    "retry_max": 7200.0,
    "retry_jitter": 0.5,
    "retention": 86400.0,
    "dedup_window": 3600.0,
    "max_payload_bytes": 1000,
    "notify": True,
    "namespace": "billing",
    "task": "send",
}


async def test_queue_is_created_with_all_options(cli: Cli) -> None:
    """The topic shows the given options afterwards."""
    flags = "--ordered --lease 1m --max-attempts 5 --retry-initial 2s --retry-factor 3 --retry-max 2h"
    more = "--retry-jitter 0.5 --retention 24h --dedup-window 1h --max-payload-bytes 1000 --notify"
    labels = "--namespace billing --task send"

    given = [*flags.split(), *more.split(), *labels.split(), "--semantics", "QUEUE"]
    made = await cli("topics", "create", "jobs", *given, "--json")

    assert made.done().json.items() >= GIVEN.items()


async def test_set_changes_only_given_options(cli: Cli, bus: Bus) -> None:
    """Options that are not given stay as they are."""
    await bus.admin.create_topic("jobs", ordered=True, max_attempts=7)

    await cli("topics", "set", "jobs", "--no-ordered", "--lease", "90")

    topic = await bus.admin.topic("jobs")
    assert (topic.ordered, topic.lease.total_seconds(), topic.max_attempts) == (False, 90, 7)


async def test_topics_are_listed_and_shown(cli: Cli, bus: Bus) -> None:
    """A list has a line per topic, and `show` has a line per option."""
    await bus.admin.create_topic("jobs", notify=True)
    await bus.send("a-topic-with-a-name-so-long-that-a-terminal-of-eighty-columns-would-fold-it-or-cut-it", 1)

    listed, shown = await cli.quick("topics", "list"), await cli.quick("topics", "show", "jobs")

    assert "a-topic-with-a-name-so-long-that-a-terminal-of-eighty-columns-would-fold-it-or-cut-it  " in listed.out
    assert "notify" in listed.out
    assert "max_attempts       25\n" in shown.done().out


async def test_topic_list_can_be_json(cli: Cli, bus: Bus) -> None:
    """The list is one JSON array, with durations in seconds and times in ISO format."""
    await bus.send("jobs", 1)

    listed = (await cli.quick("topics", "list", "--json")).done().json

    assert [(one["name"], one["waiting"], one["lease"]) for one in listed] == [("jobs", 1, 30.0)]
    assert "T" in listed[0]["oldest_at"]


async def test_empty_topic_list_says_what_to_do(cli: Cli) -> None:
    """Without topics stdout is empty, and a hint goes to stderr."""
    listed = (await cli.quick("topics", "list")).done()

    assert (listed.out, "postbus topics create" in listed.err) == ("", True)


async def test_topic_can_be_paused_and_resumed(cli: Cli, bus: Bus) -> None:
    """A paused topic is listed as such until it is resumed."""
    await bus.admin.create_topic("jobs")

    paused = await cli.quick("topics", "pause", "jobs", "--json")
    resumed = await cli.quick("topics", "resume", "jobs", "--json")

    assert paused.done().json["paused_at"] is not None
    assert resumed.done().json["paused_at"] is None


async def test_purge_dry_run_only_counts(cli: Cli, bus: Bus) -> None:
    """Without --dry-run the messages are deleted."""
    await bus.send("jobs", 1)

    would = await cli.quick("topics", "purge", "jobs", "--dry-run")
    did = await cli.quick("topics", "purge", "jobs", "--json")

    assert would.done().out == "would delete 1 waiting message of jobs\n"
    assert did.done().json == {"topic": "jobs", "count": 1, "dry_run": False}


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 4), ("", 4)])
async def test_topic_delete_asks(cli: Cli, bus: Bus, answer: str, code: int) -> None:
    """A topic is deleted only after a yes, and no answer means no."""
    await bus.admin.create_topic("jobs")

    asked = await cli("topics", "delete", "jobs", given=answer)

    assert asked.code == code
    assert [topic.name for topic in await bus.admin.topics()] == ([] if code == 0 else ["jobs"])


async def test_deleting_messages_needs_force(cli: Cli, bus: Bus) -> None:
    """--yes answers the question, but only --force deletes messages."""
    await bus.send("jobs", 1)

    refused = await cli.quick("topics", "delete", "jobs", "--yes")
    forced = await cli.quick("topics", "delete", "jobs", "--force")

    assert "has messages" in refused.failed(4).err
    assert forced.done().out == "deleted jobs and 1 message\n"


async def test_options_without_effect_are_reported(cli: Cli) -> None:
    """Options of PUB_SUB topics mean nothing to a QUEUE."""
    made = await cli.quick("topics", "create", "jobs", "--lanes", "4", "--max-retention", "60d")
    assert "for which --lanes, --max-retention does nothing" in made.done().err
    changed = await cli.quick("topics", "set", "jobs", "--zombie-time", "1h")
    assert "--zombie-time does nothing" in changed.done().err
    log = await cli.quick("topics", "create", "events", "--lanes", "4", "--semantics", "PUB_SUB")
    assert log.done().err == ""


MISTAKES = [
    ("create jobs", 4, "exists"),
    ("create bad --lease soon", 4, "--lease 'soon' is not a duration"),
    ("create bad --lease 99999999999d", 4, "is not a duration"),
    ("create bad --max-attempts 0", 4, "max_attempts goes from 1"),
    ("create bad --max-attempts many", 2, "--max-attempts"),
    ("create bad --colour red", 2, "--colour"),
    ("create", 2, "NAME"),
    ("create not/a!name", 4, "bad topic name"),
    ("set jobs", 2, "nothing to set"),
    ("set gone --lease 1m", 3, "there is no topic 'gone'"),
    ("show gone", 3, "there is no topic 'gone'"),
    ("pause gone", 3, "there is no topic 'gone'"),
    ("purge gone", 3, "there is no topic 'gone'"),
    ("delete gone --yes", 3, "there is no topic 'gone'"),
]


async def test_topic_mistakes_are_reported(cli: Cli, bus: Bus) -> None:
    """A mistake ends with its exit code, the reason and a remedy, each on one line."""
    await bus.admin.create_topic("jobs")
    for args, code, told in MISTAKES:
        failed = (await cli.quick("topics", *args.split())).failed(code)

        error, remedy = failed.err.splitlines()
        assert error.startswith("error: ")
        assert remedy.startswith("remedy: ")
        assert told in failed.err


async def test_error_can_be_json(cli: Cli) -> None:
    """With --json an error is an object with code, message and remedy on stderr, and stdout is empty."""
    failed = (await cli("topics", "show", "gone", "--json")).failed(3)

    expected: dict[str, Any] = {
        "code": "PB404",
        "message": "there is no topic 'gone'",
        "remedy": "see postbus topics list, or create it: postbus topics create gone",
    }
    assert (failed.error, failed.out) == (expected, "")
