"""Following a topic by server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from http_api.serving import client, new_token, problem, serving
from postbus import Bus
from postbus.options import Semantics


class Events:
    """The events of a stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last_id = ""

    async def next(self) -> dict[str, Any]:
        data = []
        async with asyncio.timeout(20):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if name == "data":
                    data.append(value)
                elif name == "id":
                    self.last_id = value
                elif not line and data:
                    told: dict[str, Any] = json.loads("\n".join(data))
                    return told
        raise AssertionError("the stream has ended")

    async def begun(self) -> None:
        async with asyncio.timeout(20):
            async for line in self._lines:
                if line == ": following":
                    return


@asynccontextmanager
async def following(http: httpx.AsyncClient, topic: str, **headers: str) -> AsyncIterator[Events]:
    async with http.stream("GET", f"/v1/topics/{topic}/follow", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = Events(answer.aiter_lines())
        await events.begun()
        yield events


@pytest.mark.parametrize("semantics", ["QUEUE", "PUB_SUB"])
async def test_new_messages_come_as_events(http: httpx.AsyncClient, bus: Bus, semantics: Semantics) -> None:
    """Only messages published from now on come, and a payload of several lines is unchanged."""
    await bus.admin.create_topic("t", semantics=semantics)
    await bus.send("t", "before")
    async with following(http, "t") as events:
        message_id = await bus.send("t", b'{"a":\r\n 1}', key="k", content_type="application/json")
        told = await events.next()
    assert told | {"id": str(message_id), "payload": {"a": 1}, "key": "k"} == told


async def test_following_moves_no_position(http: httpx.AsyncClient, bus: Bus) -> None:
    """A group still has everything before it that was followed."""
    await bus.admin.create_topic("t", semantics="PUB_SUB")
    await http.put("/v1/topics/t/groups/g", json={})
    async with following(http, "t") as events:
        await bus.send("t", 1)
        await events.next()
    [message] = (await http.post("/v1/topics/t/pop", json={"group": "g", "wait": 10})).json()["messages"]
    assert message["payload"] == 1


@pytest.mark.parametrize("semantics", ["QUEUE", "PUB_SUB"])
async def test_stream_is_resumed_without_a_gap(http: httpx.AsyncClient, bus: Bus, semantics: Semantics) -> None:
    """A client that continues from the last event's id gets the messages published meanwhile."""
    await bus.admin.create_topic("t", semantics=semantics)
    async with following(http, "t") as events:
        await bus.send("t", 1)
        await events.next()
    missed = await bus.send("t", 2)

    async with following(http, "t", **{"last-event-id": events.last_id}) as resumed:
        while (await resumed.next())["id"] != str(missed):
            pass


async def test_missing_topic_cannot_be_followed(http: httpx.AsyncClient) -> None:
    """The error comes before the stream begins, and so does that for a bad id."""
    problem(await http.get("/v1/topics/none/follow"), 404, "PB404")
    problem(await http.get("/v1/topics/none/follow", headers={"last-event-id": "x"}), 400, "PB400")


async def test_stream_ends_when_its_token_is_revoked(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server checks repeatedly whether the caller may still follow."""
    monkeypatch.setattr("postbus.server.callers._REMEMBERED", 0.0)
    monkeypatch.setattr("postbus.server.token_watch._EVERY", 0.1)
    await bus.admin.create_topic("t")
    async with (
        serving(bus, auth=True) as url,
        client(url, await new_token(bus, "observer")) as http,
        following(http, "t") as events,
    ):
        for one in await bus.admin.tokens():
            await bus.admin.revoke_token(one.id)
        with pytest.raises(AssertionError, match="has ended"):
            await events.next()


async def test_stream_ends_with_the_server(bus: Bus) -> None:
    """A server that is told to end does not wait for followers."""
    await bus.admin.create_topic("t")
    opened = httpx.AsyncClient(timeout=30, trust_env=False)
    async with serving(bus) as url:
        opened.base_url = httpx.URL(url)
        stream = opened.stream("GET", "/v1/topics/t/follow")
        answer = await stream.__aenter__()
        await Events(answer.aiter_lines()).begun()
    await stream.__aexit__(None, None, None)
    await opened.aclose()


async def test_idle_stream_sends_signs_of_life(
    http: httpx.AsyncClient, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They reveal dead connections."""
    monkeypatch.setattr("postbus.server.follow._SIGN_OF_LIFE", 0.0)
    await bus.admin.create_topic("t")
    async with http.stream("GET", "/v1/topics/t/follow") as answer:
        async with asyncio.timeout(20):
            async for line in answer.aiter_lines():
                if line == ":":
                    break
