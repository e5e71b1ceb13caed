"""postbus topics …"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer

from postbus._runtime.visible_text import counted
from postbus.bus import Bus
from postbus.cli._arguments import DryRun, Yes
from postbus.cli._command import Cli, command, group, option
from postbus.cli._exits import usage_error
from postbus.cli._inputs import confirm, flag_of, with_durations
from postbus.cli._render import age, write_facts, write_json, write_table
from postbus.cli._say import say
from postbus.options import DURATIONS, Semantics, Storage, Tracking
from postbus.results import QueueBacklog, TopicInfo

app = group("topics", "List, create and change topics.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.", show_default=False)]
_STUCK = 2.0  # seconds without any change

_DURATION = "30s, 5m, 24h"
TOPIC_OPTIONS = (
    option("semantics", Semantics, "QUEUE: each message goes to one consumer. PUB_SUB: to every group."),
    option(
        "ordered", bool, "QUEUE: handle the messages of a key in order; a failing one blocks only its key.",
        flag="--ordered/--no-ordered",
    ),
    option("lease", str, f"How long a lease lasts before another consumer gets the message: {_DURATION}."),
    option("max_attempts", int, "Attempts before a message becomes a dead letter."),
    option("retry_initial", str, "Wait before the second attempt …"),
    option("retry_factor", float, "… each further wait is this many times longer …"),
    option("retry_max", str, "… up to this."),
    option("retry_jitter", float, "Vary each wait at random by up to this share of it: 0 to 1."),
    option("retention", str, "How long settled messages are kept; 0 deletes those of a QUEUE on ack."),
    option("dedup_window", str, "How long a deduplication key is remembered."),
    option("max_payload_bytes", int, "The largest payload."),
    option(
        "notify", bool, "Wake consumers on every commit that publishes, even if commits then wait for each other.",
        flag="--notify/--no-notify",
    ),
    option("namespace", str, "The namespace of the topic: groups can subscribe to a whole namespace; '' for none."),
    option("task", str, "The task of the topic: groups can subscribe to a whole task; '' for none."),
    option("tracking", Tracking, "PUB_SUB: REFERENCE_COUNTING keeps receipts, OFFSET_WATERMARK only positions."),
    option("lanes", str, "PUB_SUB: the number of lanes for keys, which limits the processes of a group; or named."),
    option("storage", Storage, "PUB_SUB: shared with topics of similar retention, or own, for a busy topic."),
    option("segment_size", int, "PUB_SUB: how many messages of one publish call a row stores at most."),
    option("zero_subscription_retention", str, "PUB_SUB: how long messages are kept while no group is subscribed."),
    option(
        "block_writes_on_zero_subscriptions", bool, "PUB_SUB: refuse to publish while no group is ACTIVE.",
        flag="--block-writes-on-zero-subscriptions/--no-block-writes-on-zero-subscriptions",
    ),
    option("max_retention", str, "PUB_SUB: drop messages after this, even if a group has not received them."),
    option("dead_retention", str, "PUB_SUB: how long messages are kept for a group that became DEAD; 0: not at all."),
    option("zombie_time", str, "PUB_SUB: a group without progress for this long no longer keeps messages."),
    option("heartbeat_interval", str, "PUB_SUB: how often groups send heartbeats …"),
    option("heartbeat_timeout", str, "PUB_SUB: … and how long without that makes them DEAD."),
)  # fmt: skip
_OF_LOGS = (
    "tracking", "lanes", "storage", "segment_size", "zero_subscription_retention", "block_writes_on_zero_subscriptions",
    "max_retention", "dead_retention", "zombie_time", "heartbeat_interval", "heartbeat_timeout",
)  # fmt: skip


def _tell_unused(cli: Cli, topic: TopicInfo, given: dict[str, Any]) -> None:
    unused = [flag_of(name) for name in given if name in _OF_LOGS]
    if unused and topic.semantics == "QUEUE":
        cli.note(f"{topic.name} is a QUEUE, for which {', '.join(unused)} does nothing (--semantics PUB_SUB)")


@command(app, "list")
async def list_topics(
    cli: Cli,
    namespace: Annotated[str | None, typer.Option(help="Only of this namespace.")] = None,
    task: Annotated[str | None, typer.Option(help="Only of this task.")] = None,
) -> None:
    """Show topics and how many messages they hold."""
    async with cli.open_bus() as bus:
        topics = await bus.admin.topics(namespace=namespace, task=task)
    if cli.as_json:
        write_json(topics)
    elif not topics and (namespace or task):
        scope = f"namespace {namespace}" if namespace else f"task {task}"
        cli.note(f"no topics in {scope}; to add one: postbus topics set NAME --{scope}")
    elif not topics:
        cli.note("no topics yet: publish something, or postbus topics create NAME")
    else:
        counts = ("waiting", "delayed", "leased", "dead")
        write_table(
            ["topic", *counts, "oldest", "remarks"],
            [[one.name, *(getattr(one, name) for name in counts), age(one.oldest_at), _remarks(one)] for one in topics],
            right=(*counts, "oldest"),
        )


def _remarks(topic: TopicInfo) -> str:
    is_log = topic.semantics == "PUB_SUB"
    return ", ".join(
        remark
        for remark, applies in (
            (f"PUB_SUB, {counted(topic.groups, 'group')}, {topic.published or 0} published", is_log),
            (f"namespace {topic.namespace}", topic.namespace),
            (f"task {topic.task}", topic.task),
            ("paused", topic.paused_at),
            ("ordered", topic.ordered),
            ("notify", topic.notify),
        )
        if applies
    )


@command(app, "create", options=TOPIC_OPTIONS)
async def create(cli: Cli, name: Name, **options: Any) -> None:
    """Create a topic. You need this only for options that differ from the defaults.

    Options whose help begins with QUEUE or PUB_SUB are for topics with these semantics.
    """
    given = with_durations(options, DURATIONS)
    async with cli.open_bus() as bus:
        await bus.admin.create_topic(name, **given)
        topic = await bus.admin.topic(name)
    _show(cli, topic, f"created {name}")
    _tell_unused(cli, topic, given)


@command(app, "set", options=TOPIC_OPTIONS)
async def set_options(cli: Cli, name: Name, **options: Any) -> None:
    """Change options of a topic."""
    given = with_durations(options, DURATIONS)
    if not given:
        raise usage_error("nothing to set", remedy=f"give an option: postbus topics set {name} --max-attempts 5")
    async with cli.open_bus() as bus:
        await bus.admin.set_topic(name, **given)
        topic = await bus.admin.topic(name)
    _show(cli, topic, f"changed {name}: {', '.join(given)}")
    _tell_unused(cli, topic, given)


@command(app, "show")
async def show(cli: Cli, name: Name) -> None:
    """Show a topic's options and what it holds."""
    async with cli.open_bus() as bus:
        topic = await bus.admin.topic(name)
    if cli.as_json:
        write_json(topic)
        return
    is_log = topic.semantics == "PUB_SUB"
    in_queue = tuple(count for count in ("waiting", "delayed", "leased") if getattr(topic, count) or not is_log)
    counts = (*(("published", "groups") if is_log else ()), *in_queue, "dead")
    hidden = ("ordered",) if is_log else _OF_LOGS
    facts: dict[str, Any] = {"name": topic.name} | {count: getattr(topic, count) for count in counts}
    facts |= {"oldest": age(topic.oldest_at), "paused since": topic.paused_at, "created": topic.created_at}
    facts |= {one.name: getattr(topic, one.name) for one in TOPIC_OPTIONS if one.name not in hidden}
    write_facts({fact: value for fact, value in facts.items() if value is not None and value != ""})


def _show(cli: Cli, topic: TopicInfo, done: str) -> None:
    if cli.as_json:
        write_json(topic)
    else:
        say(done)


@command(app, "pause")
async def pause(cli: Cli, name: Name) -> None:
    """Stop delivery of a QUEUE; publishing goes on. To pause a group: postbus groups pause."""
    async with cli.open_bus() as bus:
        await bus.admin.pause_topic(name)
        topic = await bus.admin.topic(name)
    _show(cli, topic, f"paused {name}")


@command(app, "resume")
async def resume(cli: Cli, name: Name) -> None:
    """Resume delivery of a paused QUEUE."""
    async with cli.open_bus() as bus:
        await bus.admin.resume_topic(name)
        topic = await bus.admin.topic(name)
    _show(cli, topic, f"resumed {name}")


@command(app, "delete")
async def delete(
    cli: Cli,
    name: Name,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Delete its messages and groups too, and do not ask.")] = False,
) -> None:
    """Delete a topic. One that holds messages, or has groups, is deleted only with --force."""
    async with cli.open_bus() as bus:
        topic = await bus.admin.topic(name)
        if not (yes or force):
            confirm(f"Delete topic {name}?")
        await bus.admin.delete_topic(name, force=force)
    if cli.as_json:
        write_json({"deleted": name})
    else:
        say(f"deleted {name}{_with_it(topic)}")


def _with_it(topic: TopicInfo) -> str:
    if topic.semantics == "PUB_SUB":
        return f", its log and {counted(topic.groups, 'group')}"
    lost = topic.in_queue + topic.dead
    return f" and {counted(lost, 'message')}" if lost else ""


@command(app, "purge")
async def purge(cli: Cli, name: Name, dry_run: DryRun = False) -> None:
    """Delete the messages that wait in a QUEUE. Messages in hand and dead letters stay."""
    async with cli.open_bus() as bus:
        count = await bus.admin.purge_topic(name, dry_run=dry_run)
    if cli.as_json:
        write_json({"topic": name, "count": count, "dry_run": dry_run})
    else:
        say(f"{'would delete' if dry_run else 'deleted'} {counted(count, 'waiting message')} of {name}")


@command(app, "migrate")
async def migrate(
    cli: Cli,
    name: Name,
    to: Annotated[
        str | None, typer.Option("--to", metavar="SEMANTICS", help="The new semantics: PUB_SUB.", show_default=False)
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--group", help="A group that gets every message from now on; the first one inherits the queue.",
            show_default=False,
        ),
    ] = None,
    tracking: Annotated[
        Tracking | None, typer.Option("--tracking", help="The new tracking.", show_default=False)
    ] = None,
    hand_over: Annotated[
        bool, typer.Option("--hand-over", help="Give the messages left in the queue to the first group at once.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until the queue is empty: its consumers go on.")
    ] = False,
    dry_run: DryRun = False,
) -> None:  # fmt: skip
    """Turn a QUEUE into a PUB_SUB topic, or change the tracking of a topic, while producers and consumers run.

    New messages go to the log at once. The queue's consumers go on until its messages are done. The given groups wait
    for that, so that order is kept, and then get everything that was published since. Until then you can repeat the
    command, to wait again or to hand over after all.
    """
    async with cli.open_bus() as bus:
        topic = await bus.admin.topic(name)
        _check_move(topic, to, tracking)
        if topic.semantics == "PUB_SUB" and tracking is not None and not groups and not hand_over:
            await _track(cli, bus, name, tracking, dry_run=dry_run)
            return
        left = await bus.admin.move_topic(
            name, groups=groups or [], hand_over=hand_over, dry_run=dry_run, tracking=tracking or "REFERENCE_COUNTING"
        )
        if topic.semantics == "PUB_SUB" and tracking is not None and not dry_run:
            await bus.admin.set_topic(name, tracking=tracking)
        _tell_move(cli, name, left, has_group=bool(groups), dry_run=dry_run)
        ended = None if dry_run or no_wait else await _until_moved(cli, bus, name)
        begun = len(await bus.admin.groups(name)) if ended else 0
    if cli.as_json:
        write_json({"topic": name, "dry_run": dry_run, "left": left, "ended_at": ended})
    elif ended:
        say(f"moved {name}: its queue is empty, and {counted(begun, 'group')} went on")


async def _track(cli: Cli, bus: Bus, name: str, tracking: Tracking, *, dry_run: bool) -> None:
    if not dry_run:
        await bus.admin.set_topic(name, tracking=tracking)
    if cli.as_json:
        write_json({"topic": name, "dry_run": dry_run, "tracking": tracking})
    else:
        say(f"{'would track' if dry_run else 'tracks'} {name}: {tracking}")


def _check_move(topic: TopicInfo, to: str | None, tracking: str | None) -> None:
    name = topic.name
    if to not in (None, "PUB_SUB"):
        raise usage_error(
            f"a topic cannot become {to}",
            remedy="use --to PUB_SUB; if you need a QUEUE, create another topic, because a QUEUE has no groups",
        )
    if to is None and (topic.semantics == "QUEUE" or tracking is None):
        raise usage_error(
            f"nothing to do for {name}", remedy=f"say what to change: postbus topics migrate {name} --to PUB_SUB"
        )


def _tell_move(cli: Cli, name: str, left: QueueBacklog, *, has_group: bool, dry_run: bool) -> None:
    in_queue = left.waiting + left.retrying + left.leased
    cli.note(f"{'would leave' if dry_run else 'left'} {counted(in_queue, 'message')} in the queue of {name}")
    if left.scheduled:
        to = "given to the first group" if has_group else "left to the queue's consumers"
        cli.note(f"{counted(left.scheduled, 'message')} for later: {to} when due")
    if left.scheduled or left.prioritised:
        cli.note("its producers use delays or priorities, which a PUB_SUB topic refuses")


_WAITED_FOR = {
    "waiting": "{} waiting",
    "retrying": "{} to be tried again",
    "leased": "{} being handled",
    "transactions": "open transactions: {}",
}


async def _until_moved(cli: Cli, bus: Bus, name: str) -> Any:
    told: dict[str, int] = {}
    since, is_stuck = 0.0, False
    try:
        while True:
            state = await bus.admin.continue_move(name)
            if state and state.ended_at:
                return state.ended_at
            waits = {what: getattr(state, what) for what in _WAITED_FOR if getattr(state, what)} if state else told
            if waits != told:
                told, since = waits, time.monotonic()
                cli.note("not done yet: " + ", ".join(_WAITED_FOR[what].format(n) for what, n in waits.items()))
            elif not is_stuck and time.monotonic() - since > _STUCK and not await _has_consumer(bus, name):
                is_stuck = True
                cli.note(
                    f"no process consumes {name}: start its worker, such as postbus worker MODULE:BUS; "
                    f"or stop this command, and repeat it with --hand-over"
                )
            await asyncio.sleep(0.2)
    except asyncio.CancelledError:
        cli.note("the groups go on once the queue is empty; repeat the command to wait for that again")
        raise


async def _has_consumer(bus: Bus, topic: str) -> bool:
    return any(one.is_alive and topic in one.topics for one in await bus.admin.workers())
