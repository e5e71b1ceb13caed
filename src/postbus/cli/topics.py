"""postbus topics …"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from postbus.cli._command import Cli, command, group, option
from postbus.cli._exits import usage_error
from postbus.cli._inputs import as_duration, confirm
from postbus.cli._render import age, counted, write_facts, write_json, write_table

app = group("topics", "List, create and change topics.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]

_DURATION = "30s, 5m, 24h"
TOPIC_OPTIONS = (
    option("semantics", str, "QUEUE: each message goes to one consumer."),
    option(
        "ordered", bool, "Messages of one key one after the other; a failing one holds up its key only.",
        flag="--ordered/--no-ordered",
    ),
    option("lease", str, f"How long a claimed message is held before somebody else gets it: {_DURATION}."),
    option("max_attempts", int, "Attempts before a message becomes a dead letter."),
    option("retry_initial", str, "Wait before the second attempt …"),
    option("retry_factor", float, "… each further wait is this many times longer …"),
    option("retry_max", str, "… up to this."),
    option("retry_jitter", float, "Each wait is changed at random by up to this part of it, 0 to 1."),
    option("retention", str, "How long finished messages are kept; 0 deletes them on ack."),
    option("dedup_window", str, "How long a deduplication key is remembered."),
    option("max_payload_bytes", int, "The largest payload."),
    option(
        "notify", bool, "Wake consumers within the publishing transaction: for publishers that use SQL only.",
        flag="--notify/--no-notify",
    ),
)  # fmt: skip
_OPTION_NAMES = tuple(one.name for one in TOPIC_OPTIONS)
_DURATIONS = ("lease", "retry_initial", "retry_max", "retention", "dedup_window")


def _given(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    for name in _DURATIONS:
        if name in given:
            given[name] = as_duration(given[name], name=f"--{name.replace('_', '-')}")
    return given


@command(app, "list")
async def list_topics(cli: Cli) -> None:
    """Show all topics and how many messages they hold."""
    async with cli.open_bus() as bus:
        topics = await bus.admin.topics()
    if cli.as_json:
        write_json(topics)
    elif not topics:
        cli.note("no topics yet: publish something, or postbus topics create NAME")
    else:
        counts = ("waiting", "delayed", "leased", "dead")
        write_table(
            ["topic", *counts, "oldest", "remarks"],
            [[one["name"], *(one[name] for name in counts), age(one["oldest_at"]), _remarks(one)] for one in topics],
            right=(*counts, "oldest"),
        )


def _remarks(topic: dict[str, Any]) -> str:
    return ", ".join(
        remark
        for remark, applies in (
            ("paused", topic["paused_at"]),
            ("ordered", topic["ordered"]),
            ("notify", topic["notify"]),
        )
        if applies
    )


@command(app, "create", options=TOPIC_OPTIONS)
async def create(cli: Cli, name: Name, **options: Any) -> None:
    """Create a topic. Needed only where its options differ from the defaults."""
    given = _given(options)
    async with cli.open_bus() as bus:
        await bus.admin.create_topic(name, **given)
        topic = await bus.admin.topic(name)
    _show(cli, topic, f"created {name}")


@command(app, "set", options=TOPIC_OPTIONS)
async def set_options(cli: Cli, name: Name, **options: Any) -> None:
    """Change options of a topic."""
    given = _given(options)
    if not given:
        raise usage_error("nothing to set", remedy=f"such as: postbus topics set {name} --max-attempts 5")
    async with cli.open_bus() as bus:
        await bus.admin.set_topic(name, **given)
        topic = await bus.admin.topic(name)
    _show(cli, topic, f"changed {name}: {', '.join(given)}")


@command(app, "show")
async def show(cli: Cli, name: Name) -> None:
    """Show a topic's options and what it holds."""
    async with cli.open_bus() as bus:
        topic = await bus.admin.topic(name)
    if cli.as_json:
        write_json(topic)
        return
    counts = {count: topic[count] for count in ("waiting", "delayed", "leased", "dead")}
    facts = {"name": topic["name"], **counts, "oldest": age(topic["oldest_at"])}
    facts |= {"paused since": topic["paused_at"], "created": topic["created_at"]}
    facts |= {option_name: topic[option_name] for option_name in _OPTION_NAMES}
    write_facts({fact: value for fact, value in facts.items() if value is not None and value != ""})


def _show(cli: Cli, topic: dict[str, Any], done: str) -> None:
    if cli.as_json:
        write_json(topic)
    else:
        print(done)


@command(app, "pause")
async def pause(cli: Cli, name: Name) -> None:
    """Stop delivery of a topic; publishing goes on."""
    async with cli.open_bus() as bus:
        await bus.admin.pause_topic(name)
        topic = await bus.admin.topic(name)
    _show(cli, topic, f"paused {name}")


@command(app, "resume")
async def resume(cli: Cli, name: Name) -> None:
    """Start delivery of a paused topic again."""
    async with cli.open_bus() as bus:
        await bus.admin.resume_topic(name)
        topic = await bus.admin.topic(name)
    _show(cli, topic, f"resumed {name}")


@command(app, "delete")
async def delete(
    cli: Cli,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete its messages too, and do not ask.")] = False,
) -> None:
    """Delete a topic. One that holds messages is deleted only with --force."""
    async with cli.open_bus() as bus:
        topic = await bus.admin.topic(name)
        if not (yes or force):
            confirm(f"Delete topic {name}?")
        await bus.admin.delete_topic(name, force=force)
    if cli.as_json:
        write_json({"deleted": name})
    else:
        lost = sum(topic[count] for count in ("waiting", "delayed", "leased", "dead"))
        print(f"deleted {name}" + (f" and {counted(lost, 'message')}" if lost else ""))


@command(app, "purge")
async def purge(cli: Cli, name: Name, dry_run: DryRun = False) -> None:
    """Delete the messages that wait in a topic. What is being handled goes on; dead letters stay."""
    async with cli.open_bus() as bus:
        count = await bus.admin.purge_topic(name, dry_run=dry_run)
    if cli.as_json:
        write_json({"topic": name, "count": count, "dry_run": dry_run})
    else:
        print(f"{'would delete' if dry_run else 'deleted'} {counted(count, 'waiting message')} of {name}")
