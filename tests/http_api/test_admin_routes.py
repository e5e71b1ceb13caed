"""Managing topics, groups and dead letters over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import pytest

from http_api.serving import problem, serving
from postbus import Bus, CatchUp, Start, TopicOptions
from support.eventually import eventually


async def told(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_topic_can_be_managed_for_its_whole_life(http: httpx.AsyncClient, bus: Bus) -> None:
    """It is created with options, shown, changed, paused, resumed, purged and deleted."""
    options = {"lease": "1 minute", "max_attempts": 3, "ordered": True, "retention": 3600}
    made = await told(await http.post("/v1/topics", json={"name": "jobs", "options": options}), 201)
    assert (made["lease"], made["max_attempts"], made["ordered"], made["retention"]) == (60, 3, True, 3600)
    assert (await told(await http.patch("/v1/topics/jobs", json={"max_attempts": 9})))["max_attempts"] == 9
    assert (await told(await http.post("/v1/topics/jobs/pause")))["paused_at"]
    assert (await told(await http.post("/v1/topics/jobs/resume")))["paused_at"] is None
    await bus.send("jobs", 1, key="k")
    assert [one["waiting"] for one in (await told(await http.get("/v1/topics")))["topics"]] == [1]
    assert await told(await http.post("/v1/topics/jobs/purge", json={"dry_run": True})) == {"count": 1, "dry_run": True}
    problem(await http.delete("/v1/topics/jobs"), 409, "PB408")
    assert (await told(await http.post("/v1/topics/jobs/purge", json={})))["count"] == 1
    assert (await http.delete("/v1/topics/jobs", params={"force": True})).status_code == 204
    problem(await http.get("/v1/topics/jobs"), 404, "PB404")


async def test_every_topic_option_can_be_given(http: httpx.AsyncClient) -> None:
    """The API knows every option of topics that the database knows."""
    options: dict[str, Any] = {
        "semantics": "PUB_SUB", "tracking": "OFFSET_WATERMARK", "lanes": 2, "storage": "own", "segment_size": 10,
        "zero_subscription_retention": "1h", "block_writes_on_zero_subscriptions": True, "max_retention": "10 days",
        "dead_retention": "2d", "zombie_time": "1d", "heartbeat_interval": 5, "heartbeat_timeout": 50,
        "lease": 10, "max_attempts": 2,
        "retry_initial": "2s", "retry_factor": 3.0, "retry_max": "1m", "retry_jitter": 0.5, "retention": "2h",
        "dedup_window": "3h", "max_payload_bytes": 1000, "notify": True, "namespace": "shop", "task": "mail",
    }  # fmt: skip
    assert options.keys() == TopicOptions.__annotations__.keys() - {"ordered"}
    made = await told(await http.post("/v1/topics", json={"name": "t", "options": options}), 201)
    in_seconds = {
        "zero_subscription_retention": 3600, "max_retention": 864000, "dead_retention": 172800, "zombie_time": 86400,
        "retry_initial": 2, "retry_max": 60, "retention": 7200, "dedup_window": 10800,
    }  # fmt: skip
    assert made | options | in_seconds == made


async def test_group_can_be_managed_for_its_whole_life(http: httpx.AsyncClient, bus: Bus) -> None:
    """It is subscribed, shown with its lag, paused, resumed, moved, cancelled and removed."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    group = "/v1/topics/events/groups/g"
    made = await told(await http.put(group, json={"on_failure": "pass"}))
    assert (made["state"], made["is_new"]) == ("ACTIVE", True)
    assert (await told(await http.put(group, json={"on_failure": "pass"})))["is_new"] is False
    ids = [await bus.send("events", n) for n in range(3)]
    await bus.admin.sweep()
    shown = await told(await http.get(group))
    assert (shown["lag"], shown["on_failure"], shown["state"]) == (3, "pass", "ACTIVE")
    assert (await told(await http.get(f"{group}/metrics")))["lag"] == 3
    assert [one["group_name"] for one in (await told(await http.get("/v1/groups")))["groups"]] == ["g"]
    assert [one["group_name"] for one in (await told(await http.get("/v1/topics/events/groups")))["groups"]] == ["g"]
    assert (await told(await http.post(f"{group}/pause")))["state"] == "PAUSED"
    assert (await told(await http.post(f"{group}/resume")))["state"] == "ACTIVE"
    for place, left in (
        ({"start": "FROM_NOW", "dry_run": True}, 0),
        ({"start": "FROM_MESSAGE_ID", "message_id": str(ids[1])}, 2),
        ({"start": "FROM_TIMESTAMP", "timestamp": datetime.now(UTC).isoformat()}, 0),
        ({"start": "FROM_BEGINNING"}, 3),
    ):
        assert (await told(await http.post(f"{group}/seek", json={"confirm": True} | place)))["count"] == left, place
    problem(await http.post(f"{group}/resurrect"), 409, "PB433")
    assert (await http.post(f"{group}/cancel")).status_code == 204
    problem(await http.get(group), 404, "PB406")
    await http.put(group, json={})
    assert await told(await http.delete(group, params={"wait": 0})) == {"removed": True, "held": 0}


async def test_dead_group_can_be_resurrected(http: httpx.AsyncClient, bus: Bus, conn: Any) -> None:
    """The answer says how many messages it missed."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await http.put("/v1/topics/events/groups/g", json={})
    await bus.send("events", 1)
    await conn.execute("update postbus.subscription set state = 'DEAD'")
    back = await told(await http.post("/v1/topics/events/groups/g/resurrect", params={"catch_up": False}))
    assert back["missed"] == back["skipped"] == 1


async def test_catch_up_is_shown_cancelled_and_resumed(http: httpx.AsyncClient, bus: Bus) -> None:
    """The group works through history beside new messages."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await bus.send_many("events", list(range(10)))
    store = await bus.connect()
    await store.subscribe("events", "g", Start.BEGINNING, "block", CatchUp(beside_from=1))
    history = "/v1/topics/events/groups/g/catch-ups"
    [one] = (await told(await http.get(history)))["catch_ups"]
    assert (one["status"], one["total"]) == ("IN_PROGRESS", 10)
    assert (await told(await http.get("/v1/catch-ups")))["catch_ups"][0]["group_name"] == "g"
    assert (await http.post(f"{history}/cancel")).status_code == 204
    assert (await told(await http.get(history)))["catch_ups"][0]["status"] == "CANCELLED"
    assert (await http.post(f"{history}/resume")).status_code == 204


async def test_dead_letters_are_listed_shown_redriven_and_purged(http: httpx.AsyncClient, bus: Bus) -> None:
    """They are listed per topic and over all, a page at a time."""
    ids = []
    for n in range(3):
        ids.append(str(await bus.send("jobs", n, key=f"k{n}")))
        async with bus.pop("jobs") as popped:
            await popped.dead_letter(f"reason {n}")
    letters = "/v1/topics/jobs/dead-letters"
    page = (await told(await http.get(letters, params={"limit": 2})))["dead_letters"]
    rest = await told(await http.get("/v1/dead-letters", params={"after_id": page[-1]["id"], "limit": 2}))
    assert [one["id"] for one in page + rest["dead_letters"]] == ids
    shown = await told(await http.get(f"{letters}/{ids[0]}"))
    assert (shown["reason"], shown["payload"], shown["key"], shown["attempts"]) == ("reason 0", 0, "k0", 1)
    dry = {"reason_like": "reason 1", "key": "k1", "max_count": 1, "rate": 100, "dry_run": True}
    assert await told(await http.post(f"{letters}/redrive", json=dry)) == {"count": 1, "dry_run": True}
    assert (await told(await http.post(f"{letters}/redrive", json={"ids": ids[:1]})))["count"] == 1
    past = {"died_before": "2001-01-01T00:00:00Z"}
    assert (await told(await http.post(f"{letters}/purge", json=past)))["count"] == 0
    assert (await told(await http.post(f"{letters}/redrive", json={"died_after": "2001-01-01T00:00:00Z",
            "died_before": "2001-01-02T00:00:00Z"})))["count"] == 0  # fmt: skip
    assert (await told(await http.post(f"{letters}/purge", json={"ids": ids[1:2]})))["count"] == 1
    assert (await told(await http.get(letters)))["dead_letters"][0]["id"] == ids[2]


@pytest.mark.parametrize("group", ["mail", None])
async def test_dead_letters_belong_to_their_group(http: httpx.AsyncClient, bus: Bus, group: str | None) -> None:
    """On a PUB_SUB topic they are listed, shown and redriven for a group."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await http.put("/v1/topics/events/groups/mail", json={})
    message_id = await bus.send("events", 1)
    async with bus.pop("events", group="mail", wait=10) as popped:
        await popped.dead_letter("no")
    params = {} if group is None else {"group": group}
    letters = "/v1/topics/events/dead-letters"
    assert (await told(await http.get(letters, params=params)))["dead_letters"][0]["group_name"] == "mail"
    assert (await told(await http.get(f"{letters}/{message_id}", params=params)))["group_name"] == "mail"
    assert (await told(await http.get(letters, params={"group": "other"})))["dead_letters"] == []
    assert (await told(await http.post(f"{letters}/redrive", json={"group": "mail"})))["count"] == 1


async def test_server_counts_as_a_sweeper(bus: Bus) -> None:
    """It counts for as long as it serves."""

    async def is_counted(count: int) -> None:
        assert (await bus.admin.sweep_health()).processes == count

    async with serving(bus):
        await eventually(partial(is_counted, 1))
    await is_counted(0)
