"""postbus groups subscribe, scopes and forget"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from postbus._runtime.visible_text import counted
from postbus.cli._arguments import Group, NamedMode, Yes
from postbus.cli._command import Cli, command, option
from postbus.cli._inputs import confirm, first_position
from postbus.cli._render import write_json, write_table
from postbus.cli._say import say
from postbus.cli.groups import app
from postbus.options import OnFailure
from postbus.results import ScopeInfo
from postbus.scope import Scope

_Topic = Annotated[
    str | None, typer.Argument(metavar="TOPIC", help="One topic, instead of all topics in a scope.", show_default=False)
]
SCOPE = (
    option("key", str, "Only messages of this key of the topic."),
    option("namespace", str, "All topics of this namespace."),
    option("task", str, "All topics of this task."),
    option("pattern", str, "All topics that match: * stands for one word ('orders.*'), # for any number ('orders.#')."),
)
SCOPE_AND_START = (
    *SCOPE,
    option(
        "start", str, "Where it begins: now, beginning, a message's id, a time, or how long ago: 2h.", flag="--from"
    ),
    option("mode", NamedMode, "The same by name; new is from now on."),
    option("at", str, "With --mode timestamp: a time such as 2030-01-31T18:00, or how long ago: 2h."),
    option("look_back", str, "With --mode new: how long before now it begins (4s)."),
    option("on_failure", OnFailure, "Whether a failing message blocks its key."),
)


@command(app, "subscribe", options=SCOPE_AND_START)
async def subscribe(cli: Cli, group: Group, topic: _Topic = None, **options: Any) -> None:
    """Subscribe a group to a topic, to one key of it, or to all topics in a scope, including later ones.

    The first call records where the group begins. A group without consumers becomes DEAD after a while.
    """
    start = first_position(options.pop("start"), options.pop("at"))
    given = {name: value for name, value in options.items() if value is not None}
    async with cli.open_bus() as bus:
        topics = await bus.admin.subscribe_group(group, topic, start=start, **given)
    if cli.as_json:
        write_json({"group": group, "topics": topics})
    else:
        say(f"subscribed {group} to {counted(len(topics), 'topic')}{': ' if topics else ''}{', '.join(topics)}")


@command(app, "heartbeat", options=SCOPE[1:])
async def heartbeat(cli: Cli, group: Group, topic: _Topic = None, **scope: Any) -> None:
    """Keep a group of popping consumers alive while they do not pop. A DEAD group comes back."""
    async with cli.open_bus() as bus:
        pattern = scope.pop("pattern")
        told = await bus.heartbeat(topic or pattern, group=group, **scope)
    if cli.as_json:
        write_json([msgspec.to_builtins(one) for one in told])
        return
    for one in told:
        back = "" if one.missed is None else f", back with {counted(one.missed, 'message')} before it"
        say(f"{group} on {one.topic}: {one.state}{back}")


@command(app, "scopes")
async def scopes(
    cli: Cli,
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="Only of this group.", show_default=False)
    ] = None,
) -> None:
    """Show the recorded scopes of groups, where they begin, and how many topics they have."""
    async with cli.open_bus() as bus:
        found = await bus.admin.scopes(group)
    if cli.as_json:
        write_json(found)
    elif not found:
        cli.note("no scopes are recorded: postbus groups subscribe GROUP --namespace NAME")
    else:
        write_table(
            ["group", "scope", "mode", "since", "recorded", "topics"],
            [[one.group_name, _told(one), one.mode, one.start_at, one.recorded_at, len(one.topics)] for one in found],
            right=("topics",),
        )


@command(app, "forget", options=SCOPE)
async def forget(
    cli: Cli,
    group: Group,
    topic: _Topic = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Also cancel the subscriptions that the scope has made.")
    ] = False,
    yes: Yes = False,
    **scope: Any,
) -> None:
    """Forget where a group begins in a scope. No further topics join, and you can record another mode."""
    async with cli.open_bus() as bus:
        if cancel and not yes:
            confirm(f"Cancel all subscriptions of group {group} in this scope? Their positions are forgotten.")
        count = await bus.admin.forget_scope(group, topic, cancel=cancel, **scope)
    if cli.as_json:
        write_json({"group": group, "subscriptions": count, "cancelled": cancel})
    else:
        stay = "are cancelled" if cancel else "stay as they are"
        say(f"forgot a scope of {group}; {counted(count, 'subscription')} {stay}")


def scope_of(row: ScopeInfo) -> Scope:
    """The scope of a record."""
    return Scope(row.topic, row.key, row.namespace, row.task, row.pattern)


def _told(row: ScopeInfo) -> str:
    scope = scope_of(row)
    return str(scope) if scope.key is None else f"{scope}, key {scope.key}"
