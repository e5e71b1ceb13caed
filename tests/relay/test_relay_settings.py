"""Settings of relays: their sources, and errors that name each mistake."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postbus import InvalidOption
from postbus.relay.settings import RelaySettings, Route, SinkSettings, read

FILE = """
batch = 20
retention = "60d"

[sinks.events]
url = "nats://relay:${NATS_PASSWORD}@localhost"
stream = "EVENTS"

[sinks.hook]
url = "https://example.com/hook"

[[routes]]
topic = "orders"
sink = "events"
target = "orders.{event_type}"
batch = 30
form = "cloudevents"

[[routes]]
topic = "orders"
sink = "hook"
group = "relay-partner"
concurrency = 4
poll = "1s"
max_attempts = 5
registry = "shop:events"
source = "/shop"

[alerts]
max_backlog = 7
max_age = "1h"
"""


def settings(
    tmp_path: Path, file: str | None = None, env: dict[str, str] | None = None, **options: Any
) -> RelaySettings:
    path = None
    if file is not None:
        path = tmp_path / "relay.toml"
        path.write_text(file)
    return read(path, {"NATS_PASSWORD": "pw", **(env or {})}, options, {})


def test_route_has_defaults(tmp_path: Path) -> None:
    """Batches of 50, a poll every 500 ms, 25 attempts, 30 days."""
    [route] = settings(tmp_path, topic="orders", sink="nats://localhost").routes
    assert route == Route("orders", "relay-nats", SinkSettings("nats://localhost"))
    assert (route.batch, route.poll, route.max_attempts, route.retention) == (
        50,
        timedelta(milliseconds=500),
        25,
        timedelta(days=30),
    )


def test_file_has_routes(tmp_path: Path) -> None:
    """Each route has its own settings or the common ones, and passwords come from the environment."""
    found = settings(tmp_path, FILE)
    assert found.routes == [
        Route(
            "orders", "relay-events", SinkSettings("nats://relay:pw@localhost", {"stream": "EVENTS"}),
            target="orders.{event_type}", batch=30, form="cloudevents", retention=timedelta(days=60),
        ),
        Route(
            "orders", "relay-partner", SinkSettings("https://example.com/hook"), batch=20, concurrency=4,
            poll=timedelta(seconds=1), max_attempts=5, registry="shop:events", source="/shop",
            retention=timedelta(days=60),
        ),
    ]  # fmt: skip
    assert (found.alerts.max_backlog, found.alerts.max_age, found.alerts.max_dead) == (7, timedelta(hours=1), 0)


def test_options_override_the_environment_and_that_the_file(tmp_path: Path) -> None:
    """The most specific setting wins."""
    env = {"POSTBUS_RELAY_BATCH": "40", "POSTBUS_RELAY_POLL": "2s", "POSTBUS_RELAY_MAX_DEAD": "3"}
    found = settings(tmp_path, FILE, env, batch=60, group="relay-partner")
    assert [(one.batch, one.poll, one.max_attempts) for one in found.routes] == [(60, timedelta(seconds=2), 5)]
    assert found.alerts.max_dead == 3
    [route] = settings(tmp_path, FILE, env, topic="orders", group="relay-events").routes
    assert route.batch == 40


def test_environment_alone_is_enough(tmp_path: Path) -> None:
    """It can also name the file."""
    env = {"POSTBUS_RELAY_TOPIC": "orders", "POSTBUS_RELAY_SINK": "redis://localhost", "POSTBUS_RELAY_TARGET": "x"}
    [route] = settings(tmp_path, env=env).routes
    assert (route.topic, route.group, route.target) == ("orders", "relay-redis", "x")
    (tmp_path / "other.toml").write_text(FILE)
    assert len(settings(tmp_path, env={"POSTBUS_RELAY_CONFIG": str(tmp_path / "other.toml")}).routes) == 2


@pytest.mark.parametrize(
    ("file", "env", "why"),
    [
        ("batch = 0", {}, "batch 0 is not a number from 1 to 10000"),
        ("batch = true", {}, "batch True is not a number"),
        ("poll = 0", {}, "poll 0 is not positive"),
        ("poll = 'soon'", {}, "poll 'soon' is not a duration"),
        ("retention = []", {}, "retention [] is not a duration"),
        ("form = 'xml'", {}, "form 'xml' is not known"),
        ("target = 7", {}, "target 7 is not a text"),
        ("", {"POSTBUS_RELAY_BATCH": "many"}, "batch 'many' is not a number"),
        ("", {"POSTBUS_RELAY_MAX_ATTEMPTS": "0"}, "max_attempts 0 is not a number"),
        ("", {"POSTBUS_RELAY_BACTH": "1"}, "POSTBUS_RELAY_BACTH is not known"),
        ("speed = 1", {}, "has 'speed', which is not known"),
        ("= 1", {}, "is not TOML"),
        ("[alerts]\nmax_backlog = -1", {}, "max_backlog -1 is not a number"),
        ("[alerts]\nbacklog = 1", {}, "alerts have no 'backlog'"),
        ("alerts = 1", {}, "alerts is not a table"),
        ("routes = 1", {}, "routes is not a list"),
        ("[[routes]]\nsink = 'events'", {}, "route 1 has no topic"),
        ("[[routes]]\ntopic = 'x'", {}, "route 1 has no sink"),
        ("[[routes]]\ntopic = 'x'\nsink = 'nothing'", {}, "names the sink 'nothing'"),
        ("[[routes]]\ntopic = 'x'\nsink = 's'\nspeed = 1", {}, "route 1 has 'speed'"),
        ("[sinks.s]", {}, "sinks.s has no url"),
        ("[sinks.s]\nurl = '${NOTHING}'", {}, "${NOTHING} is not set"),
        ("[sinks.s]\nurl = 'null:'\n" + 2 * "[[routes]]\ntopic = 'x'\nsink = 's'\n", {}, "two routes have the topic x"),
        ("[sinks.s]\nurl = 'null:'\n[[routes]]\ntopic = 'x'\nsink = 's'", {"POSTBUS_RELAY_SINK": "null:"}, "beside"),
        ("[sinks.s]\nurl = 'null:'\n[[routes]]\ntopic = 'y'\nsink = 's'", {}, "has no such route"),
    ],
)
def test_bad_relay_settings_are_refused(tmp_path: Path, file: str, env: dict[str, str], why: str) -> None:
    """Nothing unknown is ignored."""
    with pytest.raises(InvalidOption) as failed:
        settings(tmp_path, file, env, topic="x", **({} if "s]" in file else {"sink": "null:"}))
    assert why in str(failed.value)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """The error has its name."""
    with pytest.raises(InvalidOption, match=r"nothing.toml cannot be read"):
        read(tmp_path / "nothing.toml", {}, {}, {})
