"""postbus relay …"""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from postbus._runtime import event_loop
from postbus._runtime.event_loop import EventLoop
from postbus._runtime.log_events import event
from postbus.cli._command import Cli, command, group, option
from postbus.cli._exits import usage_error
from postbus.cli._inputs import as_duration, named_value
from postbus.cli._load import load
from postbus.cli._logging import LogFormat, LogLevel, configure_logging
from postbus.cli.worker import DrainTimeout, LoopOption, run_until_stopped
from postbus.errors import InvalidOption, SinkUnavailable
from postbus.relay import EventRegistry, Sink
from postbus.relay.settings import RelaySettings, Route, read
from postbus.relay.sinks import sink_of

app = group("relay", "Send committed messages to other brokers.")

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="A TOML file with routes. (env POSTBUS_RELAY_CONFIG)"),
]
SinkOptions = Annotated[
    list[str] | None,
    typer.Option("--sink-option", metavar="NAME=VALUE", help="An option of the sink; may be repeated."),
]
OF_THE_ROUTE = (
    option("topic", str, "The topic; with a file, only routes of this topic."),
    option("group", str, "The relay's group; by default relay-SINK."),
)
ROUTE_OPTIONS = (
    *OF_THE_ROUTE,
    option("sink", str, "nats://, kafka://, amqp://, redis://, pubsub://, https://, postgresql:// or module:name."),
    option("target", str, "The target in the sink: {topic}, {key}, {event_type}, {aggregate_type}, {aggregate_id}."),
    option("form", str, "How messages are sent: attributes, cloudevents or cloudevents-structured (attributes)."),
    option("source", str, "The source attribute of CloudEvents."),
    option("registry", str, "module:name of a registry; messages that it refuses become dead letters."),
    option("batch", int, "The number of messages that are sent at a time (50)."),
    option("concurrency", int, "Batches under way at the same time; messages of one key are in one of them (1)."),
    option("poll", str, "How often to look for messages while there are no wake-ups (500ms)."),
    option("max_attempts", int, "Attempts before a message becomes a dead letter (25)."),
    option("retention", str, "How long the topic should keep sent messages for replays (30d)."),
)  # fmt: skip


@command(app, "run", options=ROUTE_OPTIONS)
def run(
    cli: Cli,
    config: Config = None,
    sink_option: SinkOptions = None,
    name: Annotated[str | None, typer.Option(help="The name of the process in lists.")] = None,
    log_level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="Write log events of this level and above.")
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="The format of log events; by default text, or json with --json.")
    ] = None,
    loop: LoopOption = EventLoop.AUTO,
    drain_timeout: DrainTimeout = None,
    **options: Any,
) -> int:
    """Relay until Ctrl-C or SIGTERM, which lets batches under way finish. Several of these processes share the work.

    Options override POSTBUS_RELAY_… (such as POSTBUS_RELAY_BATCH), which override the file.
    """
    configure_logging(log_level.value, log_format or (LogFormat.JSON if cli.as_json else LogFormat.TEXT))
    settings = settings_of(config, options, sink_option)
    within = as_duration(drain_timeout, name="--drain-timeout")
    return event_loop.run(_relay(cli, settings, name, within), loop)


async def _relay(cli: Cli, settings: RelaySettings, name: str | None, drain_timeout: timedelta | None) -> int:
    routes = [(route, sink_of_route(route), registry_of(route)) for route in needed(settings)]
    async with cli.open_bus() as bus:
        for route, sink, registry in routes:
            await _try_to_open(route, sink)
            await bus.relay(route.topic, sink, name=route.group, **route.options(registry))
        return await run_until_stopped(bus, name, drain_timeout)


async def _try_to_open(route: Route, sink: Sink) -> None:
    """Report at once what will never work. The relay waits for a sink that is away."""
    try:
        await sink.open()
    except SinkUnavailable as error:
        event(logging.WARNING, "sink.away", relay=route.group, error=str(error))
    finally:
        await sink.close()


def settings_of(config: Path | None, options: dict[str, Any], sink_options: list[str] | None) -> RelaySettings:
    """Combine the file, the environment and the options."""
    of_sink = (named_value(one, "--sink-option", example="timeout=5s") for one in sink_options or ())
    return read(config, os.environ, options, dict(of_sink))


def needed(settings: RelaySettings) -> list[Route]:
    """The routes. Refuses to have none, or one without a sink."""
    if not settings.routes:
        raise usage_error("nothing to relay", remedy="give --topic and --sink, or --config FILE")
    for route in settings.routes:
        if route.sink is None:
            raise usage_error(f"where is {route.topic} to be relayed to?", remedy="give --sink, or --config FILE")
    return settings.routes


def sink_of_route(route: Route) -> Sink:
    """The sink that the route names, not opened yet."""
    assert route.sink is not None
    return sink_of(route.sink.url, route.sink.options, _load)


def registry_of(route: Route) -> EventRegistry | None:
    """The registry that the route names, if it does."""
    if route.registry is None:
        return None
    example = "registry = Registry()"
    found = load(route.registry, object, default="registry", usage="postbus relay run --registry", example=example)
    if not isinstance(found, EventRegistry):
        raise InvalidOption(f"{route.registry} is no registry: it has no check()", remedy="name one: module:name")
    return found


def _load(target: str) -> object:
    usage = "postbus relay run --sink"
    return load(target, object, default="sink", usage=usage, example="sink = MySink()")
