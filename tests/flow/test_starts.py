"""Where a group starts: each of the four starts, through each way of subscribing, for a topic and for one key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.helpers import Cli
from http_api.serving import client, serving
from postbus import Bus, InvalidOption, Start
from postbus.http_client import HttpBus
from support.eventually import eventually
from support.running import running

_STARTS = ("now", "beginning", "timestamp", "message")


@dataclass
class _World:
    """A topic with four messages of two keys by turns, and what is needed to start a group at the third of them."""

    bus: Bus
    conn: Any
    cli: Cli
    http: httpx.AsyncClient
    http_bus: HttpBus
    ids: list[int]
    at: datetime

    def start(self, name: str) -> Start:
        return {
            "now": Start.NOW,
            "beginning": Start.BEGINNING,
            "timestamp": Start.at(self.at),
            "message": Start.from_message(self.ids[2]),
        }[name]

    def flag(self, name: str) -> str:
        """Return the start as the value of --from on the command line."""
        return {"timestamp": self.at.isoformat(), "message": str(self.ids[2])}.get(name, name)

    def modes(self, name: str) -> dict[str, Any]:
        """Return the start as fields of a pop over HTTP."""
        fields: dict[str, dict[str, Any]] = {
            "now": {"mode": "new", "look_back": 0},
            "beginning": {"mode": "all"},
            "timestamp": {"mode": "timestamp", "timestamp": self.at.isoformat()},
            "message": {"mode": "message", "message_id": str(self.ids[2])},
        }
        return fields[name]

    async def send(self, *numbers: int) -> list[int]:
        return [await self.bus.send("t", number, key="ab"[number % 2]) for number in numbers]


_Door = Callable[[_World, str, str | None], Awaitable[list[int]]]
"""Subscribes group g with a start, to all of the topic or to a key. Returns what it has got by that."""


async def _pop(world: _World, start: str, key: str | None) -> list[int]:
    popped = await world.bus.pop("t", group="g", start=world.start(start), key=key, batch=100, auto_ack=True)
    return [one.payload for one in popped]


async def _http_bus_pop(world: _World, start: str, key: str | None) -> list[int]:
    popped = await world.http_bus.pop("t", group="g", start=world.start(start), key=key, batch=100, auto_ack=True)
    return [one.payload for one in popped]


async def _http_pop(world: _World, start: str, key: str | None) -> list[int]:
    body = {"group": "g", "count": 100, "auto_ack": True, "key": key, **world.modes(start)}
    answer = await world.http.post("/v1/topics/t/pop", json=body)
    assert answer.status_code == 200, answer.text
    return [one["payload"] for one in answer.json()["messages"]]


async def _http_put(world: _World, start: str, key: str | None) -> list[int]:
    chosen = world.start(start)
    body: dict[str, str] = {"start": chosen.kind}
    body |= {} if chosen.timestamp is None else {"timestamp": chosen.timestamp.isoformat()}
    body |= {} if chosen.message_id is None else {"message_id": str(chosen.message_id)}
    answer = await world.http.put("/v1/topics/t/groups/g", json=body)
    assert answer.is_success, answer.text
    return []


async def _http_bus_admin(world: _World, start: str, key: str | None) -> list[int]:
    await world.http_bus.admin.subscribe_group("g", "t", start=world.start(start))
    return []


async def _admin(world: _World, start: str, key: str | None) -> list[int]:
    await world.bus.admin.subscribe_group("g", "t", key=key, start=world.start(start))
    return []


async def _sql(world: _World, start: str, key: str | None) -> list[int]:
    chosen = world.start(start)
    await world.conn.execute(
        "select postbus.subscribe('t', 'g', $1, $2, $3)", chosen.kind, chosen.timestamp, chosen.message_id
    )
    return []


async def _sql_scope(world: _World, start: str, key: str | None) -> list[int]:
    chosen = world.start(start).recorded(is_wide=False)
    await world.conn.fetch(
        "select * from postbus.subscribe_scope('g', 't', $1, mode => $2, start_at => $3, start_id => $4, "
        "look_back => '0')",
        key,
        chosen.mode,
        chosen.timestamp,
        chosen.message_id,
    )
    return []


async def _cli_subscribe(world: _World, start: str, key: str | None) -> list[int]:
    flags = () if key is None else ("--key", key)
    (await world.cli.quick("groups", "subscribe", "g", "t", *flags, "--from", world.flag(start))).done()
    return []


async def _cli_pop(world: _World, start: str, key: str | None) -> list[int]:
    flags = ("--group", "g", "-n", "100", "--auto-ack", "--json", *(() if key is None else ("--key", key)))
    told = (await world.cli.quick("pop", "t", *flags, "--from", world.flag(start))).done()
    return [one["payload"] for one in told.lines]


async def _cli_consume(world: _World, start: str, key: str | None) -> list[int]:
    flags = ("--group", "g", "--idle", "1s", "--json", *(() if key is None else ("--key", key)))
    told = (await world.cli("consume", "t", *flags, "--from", world.flag(start))).done()
    return [one["payload"] for one in told.lines]


async def _handler(world: _World, start: str, key: str | None) -> list[int]:
    got: list[int] = []

    @world.bus.subscribe("t", group="g", key=key, start=world.start(start))
    async def handle(number: int) -> None:
        got.append(number)

    async with running(world.bus):
        expected = _expected(start, key)

        async def has_them() -> None:
            assert got == [one for one in expected if one < 4]

        async def is_subscribed() -> None:
            assert await world.conn.fetchval("select count(*) from postbus.groups where group_name = 'g'") == 1

        await eventually(is_subscribed)
        await eventually(has_them)
    return got


_DOORS: dict[str, _Door] = {
    "handler": _handler,
    "bus.pop": _pop,
    "admin.subscribe_group": _admin,
    "HttpBus.pop": _http_bus_pop,
    "POST pop": _http_pop,
    "subscribe_scope": _sql_scope,
    "groups subscribe": _cli_subscribe,
    "pop": _cli_pop,
    "consume": _cli_consume,
}
_DOORS_OF_TOPICS: dict[str, _Door] = {
    "subscribe": _sql,
    "PUT group": _http_put,
    "HttpBus.admin.subscribe_group": _http_bus_admin,
}
_CASES = [(door, None) for door in (*_DOORS, *_DOORS_OF_TOPICS)] + [(door, "b") for door in _DOORS]


def _expected(start: str, key: str | None) -> list[int]:
    """Messages 0 to 3 exist before, 4 and 5 come later; the start is at the third."""
    first = {"now": 4, "beginning": 0}.get(start, 2)
    return [number for number in range(first, 6) if key in (None, "ab"[number % 2])]


@pytest.fixture
async def world(bus: Bus, conn: Any, dsn: str, tmp_path: Path) -> Any:
    await bus.admin.create_topic("t", semantics="PUB_SUB", lanes=2)
    async with serving(bus) as url, client(url) as http, HttpBus(url) as http_bus:
        made = _World(bus, conn, Cli(dsn, tmp_path), http, http_bus, [], datetime.min)
        made.ids = await made.send(0, 1)
        # The command line cuts times to milliseconds or takes them as they are: whole seconds are the same for all.
        await conn.execute("update postbus.segment set published_at = published_at - interval '1 hour'")
        made.at = await conn.fetchval("select date_trunc('second', clock_timestamp() - interval '10 min')")
        made.ids += await made.send(2, 3)
        yield made


@pytest.mark.parametrize("start", _STARTS)
@pytest.mark.parametrize(("door", "key"), _CASES, ids=str)
async def test_each_start_works_through_each_way_of_subscribing(
    world: _World, door: str, key: str | None, start: str
) -> None:
    """The group gets the messages from its start on and later ones, limited to its key."""
    got = await (_DOORS | _DOORS_OF_TOPICS)[door](world, start, key)
    await world.send(4, 5)
    later = await world.bus.pop("t", group="g", key=key, batch=100, auto_ack=True)

    assert sorted(got + [one.payload for one in later]) == _expected(start, key)


async def test_message_id_is_refused_as_start_for_many_topics(world: _World) -> None:
    """Topics of a namespace, a task or a pattern have no message in common."""
    chosen = world.start("message")
    for refused in (
        lambda: world.bus.pop("o.*", group="g", start=chosen),
        lambda: world.bus.pop(namespace="n", group="g", start=chosen),
        lambda: world.bus.subscribe("o.*", group="g", start=chosen),
    ):
        with pytest.raises(InvalidOption, match="no message in common"):
            refused()
    with pytest.raises(InvalidOption, match="no message in common"):
        await world.bus.admin.subscribe_group("g", task="x", start=chosen)
    with pytest.raises(InvalidOption, match="no message in common"):
        await world.http_bus.pop("o.*", group="g", start=chosen)
    body = {"group": "g", "pattern": "o.*", "mode": "message", "message_id": str(world.ids[2])}
    assert "no message in common" in (await world.http.post("/v1/pop", json=body)).text
    with pytest.raises(Exception, match="no message in common"):
        await world.conn.fetch(
            "select * from postbus.subscribe_scope('g', namespace => 'n', mode => 'message', start_id => 1)"
        )
    for command in (
        ("groups", "subscribe", "g", "--namespace", "n"),
        ("pop", "o.*", "--group", "g"),
        ("consume", "o.*", "--group", "g"),
    ):
        told = await world.cli.quick(*command, "--from", "1")
        assert told.code != 0
        assert "no message in common" in told.err
