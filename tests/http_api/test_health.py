"""Health over HTTP: the findings, and their limits."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from http_api.serving import client, new_token, problem, serving
from postbus import Bus, Start
from postbus.http_client import HttpBus
from support.grouping import create_log


async def subscribed(bus: Bus, *topics: str) -> None:
    for topic in topics:
        await create_log(bus, topic)
        await (await bus.connect()).subscribe(topic, "g", Start.NOW, "block")


async def test_health_equals_that_of_the_admin(http: httpx.AsyncClient, bus: Bus, conn: Any) -> None:
    """Both have the same findings, and whether sweeping keeps up."""
    await subscribed(bus, "t", "u")
    assert (await http.get("/v1/health")).json()["healthy"]
    await bus.admin.pause_group("u", "g")
    await conn.execute("update postbus.subscription set state = 'DEAD' where state = 'ACTIVE'")

    answer = (await http.get("/v1/health")).json()

    own = await bus.admin.group_findings()
    assert not answer["healthy"]
    assert [(one["kind"], one["text"], one["remedy"]) for one in answer["findings"]] == [
        (one.kind, one.text, one.remedy) for one in own
    ]
    assert answer["sweeping"]["healthy"]


async def test_health_is_limited_to_the_callers_topics(bus: Bus, conn: Any) -> None:
    """A token for one topic sees neither others nor the sweeping of all."""
    await subscribed(bus, "mine", "other")
    await conn.execute(
        "update postbus.subscription s set state = 'DEAD' "
        "from postbus.topic t where t.id = s.topic_id and t.name = 'other'"
    )
    token = await new_token(bus, "observer", "admin", topics=("mine",))
    async with serving(bus, auth=True) as url, client(url, token) as http:
        assert (await http.get("/v1/health")).json() == {"healthy": True, "findings": [], "sweeping": None}
        problem(await http.patch("/v1/health/limits", json={"lag": 1}), 403, "PB441")
        problem(await http.get("/v1/health/limits", params={"topic": "another"}), 403, "PB441")
        assert (await http.patch("/v1/health/limits", params={"topic": "mine"}, json={"lag": 1})).json()["lag"] == 1


async def test_limits_are_set_and_withdrawn(http: httpx.AsyncClient) -> None:
    """Omitted values stay, and `off` means no limit."""
    of_one = {"topic": "t", "group": "g"}
    made = (await http.patch("/v1/health/limits", json={"lag": 9, "lag_age": "10m"})).json()
    assert made == {"failed_share": 0.5, "lag": 9, "lag_age": 600, "stopped_for": 86400}
    assert (await http.patch("/v1/health/limits", params=of_one, json={"lag": "off"})).json()["lag"] is None
    assert (await http.get("/v1/health/limits", params=of_one)).json()["lag"] is None
    assert (await http.patch("/v1/health/limits", params=of_one, json={"lag": None})).json()["lag"] == 9
    problem(await http.patch("/v1/health/limits", json={"failed_share": 7}), 400, "PB402")


@pytest.mark.parametrize("name", ["t", "t*"])
async def test_consumers_over_http_stop_their_groups(bus: Bus, name: str) -> None:
    """They do so by a last heartbeat, or by closing the client; the end of the server stops no group."""
    await subscribed(bus, "t")
    await bus.admin.subscribe_group("g", pattern="*")
    topic = "*" if name == "t*" else name
    async with serving(bus) as url:
        async with HttpBus(url) as http:
            await http.pop(topic, group="g")
            assert (await bus.admin.group("t", "g")).stopped_by is None
        assert (await bus.admin.group("t", "g")).stopped_by == "everybody"
        async with HttpBus(url) as http:
            await http.heartbeat(topic, group="g")
            assert (await bus.admin.group("t", "g")).stopped_by is None
            await http.heartbeat(topic, group="g", last=True)
            assert (await bus.admin.group("t", "g")).stopped_by == "everybody"


async def test_end_of_a_server_does_not_stop_groups(bus: Bus, dsn: str) -> None:
    """Consumers that pop through it live elsewhere."""
    await subscribed(bus, "t")
    async with Bus.open(dsn) as own, serving(own) as url, client(url) as http:
        assert (await http.post("/v1/topics/t/pop", json={"group": "g"})).status_code == 200
    assert (await bus.admin.group("t", "g")).stopped_by is None


async def test_client_returns_the_health(bus: Bus) -> None:
    """HttpBus has the same call."""
    await subscribed(bus, "t")
    await bus.admin.pause_group("t", "g")
    async with serving(bus) as url, HttpBus(url) as http:
        found = await http.admin.health()
    assert (found["healthy"], [one["kind"] for one in found["findings"]]) == (True, ["paused"])
