"""Settings of relays: routes from topics to sinks. The environment overrides a file, and options override both."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from postbus.errors import InvalidOption
from postbus.options import as_timedelta, is_count
from postbus.relay.envelope import Form
from postbus.relay.plan import BATCH, CONCURRENCY, MAX_ATTEMPTS, POLL, RETENTION, RelayOptions
from postbus.relay.relay import EventRegistry
from postbus.relay.sinks import kind_at

PREFIX = "POSTBUS_RELAY_"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_COUNTS = {"batch": 10_000, "concurrency": 10_000, "max_attempts": 10_000}
_DURATIONS = ("poll", "retention")
_TEXTS = ("target", "form", "source", "registry")
OF_ROUTES = (*_COUNTS, *_DURATIONS, *_TEXTS)
"""The settings of a route, which may also be given for all routes."""
OF_ONE = ("topic", "group", "sink")
_ALERTS = {"max_backlog": int, "max_age": timedelta, "max_dead": int}


@dataclass(frozen=True)
class SinkSettings:
    """The address of a sink, and its own options."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """A route from a topic to a sink."""

    topic: str
    group: str
    sink: SinkSettings | None
    target: str | None = None
    form: str = Form.ATTRIBUTES
    source: str | None = None
    registry: str | None = None
    batch: int = BATCH
    concurrency: int = CONCURRENCY
    poll: timedelta = POLL
    max_attempts: int = MAX_ATTEMPTS
    retention: timedelta = RETENTION

    def options(self, registry: EventRegistry | None) -> RelayOptions:
        """The options for `bus.relay()`, with the registry that this route names."""
        return RelayOptions(
            target=self.target,
            form=self.form,
            source=self.source,
            registry=registry,
            batch=self.batch,
            concurrency=self.concurrency,
            poll=self.poll,
            max_attempts=self.max_attempts,
            retention=self.retention,
        )


@dataclass(frozen=True)
class Alerts:
    """Limits above which a relay needs attention."""

    max_backlog: int = 10_000
    """The number of unsent messages."""
    max_age: timedelta = timedelta(minutes=5)
    """The age of the oldest unsent message."""
    max_dead: int = 0
    """The number of dead letters."""


@dataclass(frozen=True)
class RelaySettings:
    """The settings of all relays of a process."""

    routes: list[Route] = field(default_factory=list)
    alerts: Alerts = field(default_factory=Alerts)


def read(
    path: Path | None, environment: Mapping[str, str], options: Mapping[str, Any], sink_options: Mapping[str, Any]
) -> RelaySettings:
    """Combine a file, POSTBUS_RELAY_… and options. Bad values are refused by name."""
    given = _from_environment(environment)
    path = path or (Path(given["config"]) if "config" in given else None)
    file = _from_file(path, environment) if path is not None else {}
    direct = {name: value for name, value in given.items() if name != "config"}
    direct |= {name: value for name, value in options.items() if value is not None}
    where = f"{path}" if path is not None else ""
    return RelaySettings(
        _routes(file, direct, sink_options, where),
        _alerts({**_table(file, "alerts", where), **{name: direct[name] for name in _ALERTS if name in direct}}),
    )


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    known = {*OF_ROUTES, *OF_ONE, *_ALERTS, "config"}
    given = {}
    for variable, value in environment.items():
        if variable.startswith(PREFIX) and value:
            name = variable.removeprefix(PREFIX).lower()
            if name not in known:
                listed = ", ".join(f"{PREFIX}{one.upper()}" for one in sorted(known))
                raise InvalidOption(f"{variable} is not known", remedy=f"there are {listed}")
            given[name] = value
    return given


def _from_file(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path} cannot be read: {error}", remedy="name a TOML file") from error
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"{path} is not TOML: {error}", remedy="correct the file at that line") from error
    unknown = sorted(set(found) - {*OF_ROUTES, "routes", "sinks", "alerts"})
    if unknown:
        remedy = f"there are {', '.join((*OF_ROUTES, 'routes', 'sinks', 'alerts'))}"
        raise InvalidOption(f"{path} has {unknown[0]!r}, which is not known", remedy=remedy)
    filled: dict[str, Any] = _filled(found, environment, str(path))
    return filled


def _filled(value: Any, environment: Mapping[str, str], where: str) -> Any:
    """Replace ${NAME} in texts by environment variables, so that files need not contain passwords."""
    if isinstance(value, dict):
        return {name: _filled(one, environment, f"{where}: {name}") for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, environment, where) for one in value]
    if not isinstance(value, str):
        return value

    def replaced(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise InvalidOption(f"{where}: ${{{found[1]}}} is not set", remedy=f"set the variable {found[1]}")
        return environment[found[1]]

    return _VARIABLE.sub(replaced, value)


def _routes(
    file: Mapping[str, Any], direct: Mapping[str, Any], sink_options: Mapping[str, Any], where: str
) -> list[Route]:
    common = {name: file[name] for name in OF_ROUTES if name in file}
    over = {name: direct[name] for name in OF_ROUTES if name in direct}
    listed = file.get("routes", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise InvalidOption(f"{where}: routes is not a list of tables", remedy="write [[routes]] before each")
    if listed and "sink" in direct:
        raise InvalidOption("a sink is given beside the routes of a file", remedy="omit one of them")
    sinks = {name: _sink(one, f"{where}: sinks.{name}") for name, one in _table(file, "sinks", where).items()}
    routes = []
    for number, one in enumerate(listed, 1):
        route_name = f"{where}: route {number}"
        unknown = sorted(set(one) - {*OF_ROUTES, *OF_ONE})
        if unknown:
            raise InvalidOption(
                f"{route_name} has {unknown[0]!r}, which is not known",
                remedy=f"there are {', '.join((*OF_ONE, *OF_ROUTES))}",
            )
        for name in ("topic", "sink"):
            if not isinstance(one.get(name), str) or not one[name]:
                raise InvalidOption(f"{route_name} has no {name}", remedy=f'add {name} = "…"')
        sink = sinks.get(one["sink"])
        if sink is None:
            raise InvalidOption(
                f"{route_name} names the sink {one['sink']!r}", remedy=f"add [sinks.{one['sink']}] with its url"
            )
        group = one.get("group") or f"relay-{one['sink']}"
        routes.append(_route(one["topic"], group, sink, {**common, **_only(one), **over}, route_name))
    if listed:
        routes = [
            one
            for one in routes
            if direct.get("topic") in (None, one.topic) and direct.get("group") in (None, one.group)
        ]
        if not routes:
            raise InvalidOption(f"{where} has no such route", remedy="see its routes, or omit --topic and --group")
    elif "topic" in direct:
        sink = SinkSettings(str(direct["sink"]), sink_options) if "sink" in direct else None
        group = str(direct.get("group") or f"relay-{kind_at(sink.url) if sink else 'sink'}")
        routes.append(_route(str(direct["topic"]), group, sink, {**common, **over}, "the options"))
    _refuse_twice(routes)
    return routes


def _only(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one[name] for name in OF_ROUTES if name in one}


def _refuse_twice(routes: list[Route]) -> None:
    seen = set()
    for one in routes:
        if (one.topic, one.group) in seen:
            raise InvalidOption(
                f"two routes have the topic {one.topic} and the group {one.group}",
                remedy='give each its own: group = "relay-…"',
            )
        seen.add((one.topic, one.group))


def _sink(given: Any, where: str) -> SinkSettings:
    if not isinstance(given, dict) or not isinstance(given.get("url"), str):
        raise InvalidOption(f"{where} has no url", remedy='add url = "nats://…", or another')
    return SinkSettings(given["url"], {name: value for name, value in given.items() if name != "url"})


def _table(file: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    found = file.get(name, {})
    if not isinstance(found, dict):
        raise InvalidOption(f"{where}: {name} is not a table", remedy=f"write [{name}]")
    return found


def _route(topic: str, group: str, sink: SinkSettings | None, given: Mapping[str, Any], where: str) -> Route:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in _COUNTS:
            values[name] = _count(name, value, 1, _COUNTS[name], where)
        elif name in _DURATIONS:
            values[name] = _duration(name, value, where)
        elif not isinstance(value, str) or not value:
            raise InvalidOption(f"{where}: {name} {value!r} is not a text", remedy="give a text")
        else:
            values[name] = value
    if values.get("form", Form.ATTRIBUTES) not in tuple(Form):
        raise InvalidOption(f"{where}: form {values['form']!r} is not known", remedy=f"use {', '.join(Form)}")
    return Route(topic, group, sink, **values)


def _count(name: str, value: Any, least: int, most: int, where: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:20])
    if not is_count(value, most, least=least):
        raise InvalidOption(
            f"{where}: {name} {value!r} is not a number from {least} to {most}",
            remedy=f"give one such as {name} = {min(most, 50)}",
        )
    return value


def _duration(name: str, value: Any, where: str) -> timedelta:
    try:
        length = as_timedelta(float(value) if isinstance(value, str) and value.isdigit() else value, name=name)
    except InvalidOption as error:
        raise InvalidOption(
            f"{where}: {error.message}", remedy='give one such as "500ms", "30s", "5m" or "30d"'
        ) from error
    if length <= timedelta(0):
        raise InvalidOption(f"{where}: {name} {value!r} is not positive", remedy='give one such as "500ms" or "30d"')
    return length


def _alerts(given: Mapping[str, Any]) -> Alerts:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _ALERTS:
            raise InvalidOption(f"alerts have no {name!r}", remedy=f"there are {', '.join(_ALERTS)}")
        is_count = _ALERTS[name] is int
        values[name] = _count(name, value, 0, 2**62, "alerts") if is_count else _duration(name, value, "alerts")
    return Alerts(**values)
