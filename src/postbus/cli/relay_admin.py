"""postbus relay status, replay and rewind"""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import typer

from postbus._runtime.visible_text import counted
from postbus.cli._arguments import DryRun, To, Yes
from postbus.cli._command import Cli, command, option
from postbus.cli._exits import FAILED, OK, usage_error
from postbus.cli._inputs import as_past_moment, confirm
from postbus.cli._render import printable, write_json, write_table
from postbus.cli._say import say
from postbus.cli.groups import seek
from postbus.cli.relay import (
    ROUTE_OPTIONS,
    Config,
    SinkOptions,
    app,
    needed,
    registry_of,
    settings_of,
    sink_of_route,
)
from postbus.relay.plan import plan
from postbus.relay.replay import Replay, Replayed, ReplayRequest
from postbus.relay.settings import Route
from postbus.relay.status import statuses

ALERT_OPTIONS = (
    option("max_backlog", int, "Alert if more messages than this are not sent (10000)."),
    option("max_age", str, "Alert if the oldest of them is older than this (5m)."),
    option("max_dead", int, "Alert if there are more dead letters than this (0)."),
)
Topic = Annotated[str | None, typer.Option(help="The topic; with a file, only routes of this topic.")]
Group = Annotated[str | None, typer.Option(help="The relay's group; by default relay-SINK.")]


@command(app, "status", options=ALERT_OPTIONS)
async def status(cli: Cli, config: Config = None, topic: Topic = None, group: Group = None, **options: Any) -> int:
    """Show what relays have not sent, and whether somebody should look. The exit code is 0 without alerts, else 1.

    Without a topic or a file, this shows all groups whose names begin with relay-.
    """
    settings = settings_of(config, {"topic": topic, "group": group, **options}, None)
    async with cli.open_bus() as bus:
        found = await statuses(bus.admin, settings.routes, settings.alerts)
    if cli.as_json:
        write_json({"ok": not any(one.alerts for one in found), "relays": [vars(one) for one in found]})
    elif not found:
        cli.note("no relay has run yet: postbus relay run --topic TOPIC --sink URL")
    else:
        columns = ("topic", "group", "state", "backlog", "oldest", "deferred", "dead", "workers")
        write_table(
            [*columns, "remarks"],
            [
                [*(getattr(one, name) for name in columns), "; ".join(filter(None, [*one.alerts, one.note]))]
                for one in found
            ],
            right=("backlog", "oldest", "deferred", "dead", "workers"),
        )
    return FAILED if any(one.alerts for one in found) else OK


@command(app, "replay", options=ROUTE_OPTIONS)
async def replay(
    cli: Cli,
    config: Config = None,
    sink_option: SinkOptions = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="WHEN", help="Messages since this time, or of the last 2h, 7d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Messages before this time, or more than 2h, 7d ago.")
    ] = None,
    event_type: Annotated[str | None, typer.Option(help="Messages of this type (header event-type).")] = None,
    aggregate_type: Annotated[
        str | None, typer.Option(help="Messages of these aggregates (header aggregate-type).")
    ] = None,
    aggregate_id: Annotated[str | None, typer.Option(help="Messages of this aggregate (header aggregate-id).")] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="All messages that the topic still has.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    **options: Any,
) -> int:
    """Send messages that a topic still has to the sink of a route again. The relay itself goes on as before.

    Messages keep their event_id, but sinks that drop duplicates take them again. The exit code is 1 if the sink refused
    some.
    """
    wanted = ReplayRequest(
        since=as_past_moment(since, name="--from"),
        until=as_past_moment(until, name="--until"),
        event_type=event_type,
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
    )
    if bool(wanted.filters()) is all_of_them:
        raise usage_error("which messages?", remedy="give --from, --until, --event-type, --aggregate-id, … or --all")
    routes = needed(settings_of(config, options, sink_option))
    if len(routes) > 1:
        raise usage_error(f"which of the {len(routes)} routes?", remedy="give --topic and --group")
    route = routes[0]
    told = await _replay(cli, route, wanted, dry_run=dry_run, yes=yes)
    if told is None:
        return OK
    if cli.as_json:
        refused = [{"id": message_id, "reason": why} for message_id, why in told.refused]
        write_json(
            {"topic": route.topic, "group": route.group, "found": told.found, "sent": told.sent, "refused": refused}
        )
    else:
        say(f"sent {counted(told.sent, 'message')} of {route.topic} again")
        for message_id, why in told.refused:
            say(f"refused {message_id}: {printable(why)}")
    return FAILED if told.refused else OK


async def _replay(cli: Cli, route: Route, wanted: ReplayRequest, *, dry_run: bool, yes: bool) -> Replayed | None:
    """Send them, or only count them and return None."""
    suffix = f"/replay-{secrets.token_hex(4)}"
    async with cli.open_bus() as bus:
        store = await bus.connect()
        sink = sink_of_route(route)
        planned = await plan(store, route.topic, sink, route.group, route.options(registry_of(route)), suffix=suffix)
        replaying = Replay(store, route.topic, planned.relay, batch=route.batch, retry=planned.retry)
        try:
            if dry_run or not yes:
                count = await replaying.count(wanted)
                if dry_run:
                    _tell_count(cli, route, count)
                    return None
                confirm(f"Send {counted(count, 'message')} of {route.topic} again to {planned.relay.name}?")
            return await replaying.run(wanted)
        finally:
            await planned.relay.close()


def _tell_count(cli: Cli, route: Route, count: int) -> None:
    if cli.as_json:
        write_json({"topic": route.topic, "group": route.group, "found": count, "dry_run": True})
    else:
        say(f"would send {counted(count, 'message')} of {route.topic} again")


@command(app, "rewind")
async def rewind(
    cli: Cli,
    to: To,
    config: Config = None,
    topic: Topic = None,
    group: Group = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Move a relay to another position. It goes on from there, and sends all messages after it, even again."""
    routes = settings_of(config, {"topic": topic, "group": group}, None).routes
    if len(routes) != 1 or (config is None and group is None and routes[0].sink is None):
        raise usage_error("which relay?", remedy="give --topic and --group, or --config with --topic")
    await seek(cli, routes[0].topic, routes[0].group, to, dry_run, yes)
