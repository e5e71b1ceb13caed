"""GET /v1/audit: who did what, over HTTP and otherwise, and who may read it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from http_api.serving import client, new_token, problem, serving
from postbus import Bus


async def entries(http: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    answer = await http.get("/v1/audit", params=params)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["entries"]
    return found


async def test_action_over_http_is_recorded_with_its_token(bus: Bus, conn: Any) -> None:
    """The token stands beside the server's database user."""
    made = await bus.admin.create_token("deploy", ["admin"])
    async with serving(bus, auth=True) as url, client(url, made.token) as http:
        assert (await http.post("/v1/topics", json={"name": "orders"})).status_code == 201
        assert (await http.patch("/v1/topics/orders", json={"max_attempts": 3})).status_code == 200
        [set_, created] = await entries(http, topic="orders")
    assert created["action"] == "topic.create"
    assert (set_["action"], set_["before"], set_["after"]) == ("topic.set", {"max_attempts": 25}, {"max_attempts": 3})
    assert {one["actor"] for one in (set_, created)} == {f"token:{made.id} deploy"}
    assert set_["login"] == await conn.fetchval("select session_user")


async def test_every_changing_route_records_the_caller(bus: Bus) -> None:
    """None of the entries has the server's own name."""
    made = await bus.admin.create_token("all", ["admin", "consumer"])
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await bus.send("jobs", 1)
    [last, *_] = await bus.admin.audit()
    group, hook = "/v1/topics/events/groups/g", "/v1/webhooks/h"
    async with serving(bus, auth=True) as url, client(url, made.token) as http:
        for method, path, body in [
            ("PUT", group, {}), ("POST", f"{group}/pause", None), ("POST", f"{group}/resume", None),
            ("POST", f"{group}/seek", {"start": "FROM_BEGINNING", "confirm": True}), ("POST", f"{group}/cancel", None),
            ("PUT", group, {}), ("DELETE", f"{group}?wait=0", None),
            ("POST", "/v1/topics/jobs/pause", None), ("POST", "/v1/topics/jobs/resume", None),
            ("POST", "/v1/topics/jobs/purge", {}),
            ("POST", "/v1/webhooks", {"name": "h", "topic": "events", "group": "w", "url": "https://a.example/x"}),
            ("PATCH", hook, {"enabled": False}), ("DELETE", hook, None),
            ("PATCH", "/v1/health/limits?topic=jobs", {"lag": 5}), ("DELETE", "/v1/topics/jobs?force=true", None),
        ]:  # fmt: skip
            answer = await http.request(method, path, json=body)
            assert answer.is_success, (path, answer.text)
        found = [one for one in await entries(http) if int(one["id"]) > last.id]
    assert [one["action"] for one in reversed(found)] == [
        "group.subscribe", "group.pause", "group.resume", "group.seek", "group.cancel", "group.subscribe",
        "group.pause", "group.remove", "topic.pause", "topic.resume", "topic.purge", "webhook.create",
        "group.subscribe", "webhook.set", "webhook.delete", "health.set", "topic.delete",
    ]  # fmt: skip
    assert {one["actor"] for one in found} == {f"token:{made.id} all"}


async def test_entries_are_filtered_and_paged(bus: Bus) -> None:
    """The filters are time, actor, kind of action, topic and group; the newest entries come first."""
    for n in range(5):
        await bus.admin.acting_as(f"person {n}").create_topic(f"t{n}")
    await bus.admin.pause_topic("t1")
    async with serving(bus) as url, client(url) as http:
        assert [one["topic"] for one in await entries(http, action="topic.create", limit=2)] == ["t4", "t3"]
        first = await entries(http, action="topic", limit=2)
        rest = await entries(http, action="topic", before_id=first[-1]["id"])
        assert [one["topic"] for one in first + rest] == ["t1", "t4", "t3", "t2", "t1", "t0"]
        page = (await http.get("/v1/audit", params={"limit": 2, "action": "topic"})).json()
        assert page["entries"] == first
        assert await entries(http, action="topic", cursor=page["next"]) == rest
        older = {"cursor": page["next"], "before_id": rest[0]["id"]}
        assert await entries(http, action="topic", **older) == rest[1:], "both limit what comes"
        assert (await http.get("/v1/audit", params={"action": "topic"})).json()["next"] is None
        assert [one["topic"] for one in await entries(http, actor="PERSON 3")] == ["t3"]
        assert [one["action"] for one in await entries(http, topic="t1")] == ["topic.pause", "topic.create"]
        assert await entries(http, topic="t1", group="g") == []
        assert await entries(http, action="top") == [], "a kind has a name of its own"
        at = rest[0]["at"]
        assert [one["topic"] for one in await entries(http, since=at, action="topic.create")] == ["t4", "t3"]
        assert [one["topic"] for one in await entries(http, until=at, action="topic.create")] == ["t2", "t1", "t0"]
        assert (await http.get("/v1/audit", params={"since": "soon"})).status_code == 400


@pytest.mark.parametrize("role", ["producer", "consumer", "observer", "operator"])
async def test_only_admins_read_the_audit_log(bus: Bus, role: str) -> None:
    """Every other role gets 403."""
    async with serving(bus, auth=True) as url, client(url, await new_token(bus, role)) as http:
        problem(await http.get("/v1/audit"), 403, "PB441")


async def test_token_for_some_topics_sees_only_their_entries(bus: Bus) -> None:
    """It sees no entries of other topics, tokens or common settings; an underscore in a pattern is literal."""
    for name in ("orders.new", "orders", "a_b", "axb"):
        await bus.admin.create_topic(name)
    await bus.admin.set_sweeping(batch_size=5)
    token = await new_token(bus, "admin", topics=("orders.*", "a_*"))
    async with serving(bus, auth=True) as url, client(url, token) as http:
        assert {one["topic"] for one in await entries(http)} == {"orders.new", "a_b"}
        assert await entries(http, topic="orders") == []


async def test_token_for_some_groups_sees_only_their_entries(bus: Bus) -> None:
    """It does not see actions on a topic as a whole."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    for name in ("mail", "audit"):
        await bus.admin.subscribe_group(name, "events")
    made = await bus.admin.create_token("mine", ["admin"], groups=["ma*"])
    async with serving(bus, auth=True) as url, client(url, made.token) as http:
        assert [(one["action"], one["group_name"]) for one in await entries(http)] == [("group.subscribe", "mail")]
