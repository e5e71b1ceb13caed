"""postbus messages …"""

from __future__ import annotations

from typing import Any

from cli.helpers import Cli
from postbus import Bus, Start
from support.grouping import bury


async def test_message_of_the_log_is_shown_with_its_deliveries(cli: Cli, bus: Bus) -> None:
    """Each group has a line with status, time, worker, attempts and error."""
    await bus.admin.create_topic("events", semantics="PUB_SUB", lanes=1)
    store = await bus.connect()
    for group in ("mail", "stock"):
        await store.subscribe("events", group, Start.NOW, "block")
    [id] = await bury(bus, 1)
    await store.heartbeat("reader", "host", 1, [])
    stock = (await bus.admin.group("events", "stock")).subscription_id
    await store.lease_lanes("reader", [stock], [])

    shown = (await cli.quick("messages", "show", "events", str(id))).done().out
    as_json = (await cli.quick("messages", "show", "events", str(id), "--json")).done().json

    facts, deliveries, payload = shown.split("\n\n")
    told = dict(line.split(maxsplit=1) for line in facts.splitlines())
    assert (told["id"], told["key"], told["status"], told["required"]) == (str(id), "k", "PROCESSING", "mail, stock")
    heading, mail, stock_line = deliveries.splitlines()
    assert heading.split()[:3] == ["group", "status", "required"]
    assert (mail.split()[:3], mail.endswith("ValueError: no")) == (["mail", "DEAD", "yes"], True)
    assert stock_line.split() == ["stock", "PENDING", "yes", "0", "reader"]
    assert payload == "payload\n  1\n"
    assert (as_json["id"], as_json["payload"], as_json["status"]) == (id, 1, "PROCESSING")
    assert {one["group_name"]: one["status"] for one in as_json["deliveries"]} == {"mail": "DEAD", "stock": "PENDING"}
    assert "txid" not in as_json


async def test_message_of_a_queue_is_shown_with_its_lease(cli: Cli, bus: Bus, conn: Any) -> None:
    """It shows the state, and who holds it until when."""
    id = await bus.send("jobs", {"n": 1}, key="k", headers={"tenant": "acme"})
    await conn.fetch("select * from postbus.claim('jobs', 'worker-1', 1)")

    shown = (await cli.quick("messages", "show", "jobs", str(id))).done().out
    as_json = (await cli.quick("messages", "show", "jobs", str(id), "--json")).done().json

    facts, payload = shown.split("\n\n")
    for line in ("state         leased", "by            worker-1", "headers       tenant=acme", "lease ends    20"):
        assert f"\n{line}" in facts
    assert payload == 'payload\n  {\n    "n": 1\n  }\n'
    assert (as_json["state"], as_json["member"], as_json["headers"]) == ("leased", "worker-1", {"tenant": "acme"})


async def test_missing_message_ends_with_3(cli: Cli, bus: Bus) -> None:
    """A bad id is a usage error."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await bus.admin.create_topic("jobs")
    for topic in ("events", "jobs", "nowhere"):
        assert (await cli.quick("messages", "show", topic, "4711", "--json")).failed(3).error["remedy"]
    for wrong in ("x", str(2**64)):
        assert (await cli.quick("messages", "show", "jobs", wrong, "--json")).failed(2).error["remedy"]
