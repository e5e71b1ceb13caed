"""postbus pop, and postbus leases"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from cli.helpers import Cli, Result, finish
from postbus import Bus
from support.pulling import send_numbers, states_of


async def popped(cli: Cli, *args: str) -> list[Any]:
    """Return the popped messages, from JSON."""
    return (await cli.quick("pop", *args, "--json")).done().lines


async def test_pop_prints_messages_with_their_token(cli: Cli, bus: Bus, conn: Any) -> None:
    """There is a line for the lease and one for each message."""
    ids = [await bus.send("jobs", {"n": number}, key="k") for number in range(3)]

    shown = await cli("pop", "jobs", "--batch", "2", "--lease", "1m")

    lease, first, second = shown.done().out.splitlines()
    token = await conn.fetchval("select token from postbus.lease")
    assert lease.startswith(f"lease {token}, for ")
    assert (first.split()[0], second.split()[-1]) == (str(ids[0]), '{"n":1}')
    assert await states_of(conn, "jobs") == {"leased": 2, "waiting": 1}


async def test_pop_can_print_json(cli: Cli, bus: Bus) -> None:
    """Each message is an object with everything needed to settle it."""
    message_id = await bus.send("jobs", {"n": 1}, key="k", headers={"a": "b"})

    (one,) = await popped(cli, "jobs", "-n", "5", "--lease", "1m")

    assert (one["id"], one["payload"], one["key"], one["headers"]) == (message_id, {"n": 1}, "k", {"a": "b"})
    assert len(one["token"]) == 36
    assert one["lease_ends_at"] > one["published_at"]


async def test_pop_of_an_empty_queue_is_no_error(cli: Cli) -> None:
    """It prints nothing but a note on stderr."""
    shown = (await cli.quick("pop", "jobs")).done()

    assert (shown.out, shown.err) == ("", "no messages\n")


async def test_pop_waits_for_a_message(cli: Cli, bus: Bus) -> None:
    """--wait limits the time."""
    waiting = await cli.start("pop", "jobs", "--wait", "60s", "--auto-ack", "--json")
    ended = asyncio.create_task(finish(waiting))
    await bus.send("jobs", {"n": 1})

    assert (await ended).done().lines[0]["payload"] == {"n": 1}


async def test_pop_with_auto_ack_settles_at_once(cli: Cli, bus: Bus, conn: Any) -> None:
    """Nobody gets the messages again, and there is no token."""
    await send_numbers(bus, "jobs", 2)

    (one,) = await popped(cli, "jobs", "--auto-ack")

    assert (one["token"], one["lease_ends_at"]) == (None, None)
    assert await states_of(conn, "jobs") == {"waiting": 1}


async def test_pop_accepts_a_group_and_a_key(cli: Cli, bus: Bus, events: str) -> None:
    """--group pops from a PUB_SUB topic, and --key only messages of that key."""
    for key in ("a", "b"):
        await bus.send(events, key, key=key)

    assert [one["payload"] for one in await popped(cli, events, "--group", "mail", "--key", "b", "-n", "5")] == ["b"]
    assert [one["payload"] for one in await popped(cli, events, "--group", "stock", "-n", "5")] == ["a", "b"]


async def test_pop_accepts_scopes_and_starts(cli: Cli, bus: Bus) -> None:
    """It pops from all topics of a namespace, a task or a pattern, and the first pop sets the start."""
    await bus.admin.create_topic("shop.a", semantics="PUB_SUB", namespace="shop", task="mail")
    await bus.send("shop.a", "old")

    everything = await popped(cli, "--namespace", "shop", "--group", "all", "--mode", "all")
    lately = await popped(cli, "shop.*", "--group", "new", "--mode", "timestamp", "--at", "2100-01-01T00:00")
    hour = await popped(cli, "--task", "mail", "--group", "hour", "--mode", "timestamp", "--at", "1h")

    assert [one["payload"] for one in everything] == ["old"]
    assert everything[0]["topic"] == "shop.a"
    assert lately == []
    assert [one["payload"] for one in hour] == ["old"]


async def test_messages_are_settled_by_token(cli: Cli, bus: Bus, conn: Any) -> None:
    """Each settlement affects exactly the named messages."""
    await send_numbers(bus, "jobs", 4)
    messages = await popped(cli, "jobs", "-n", "4", "--lease", "5s")
    token, ids = messages[0]["token"], [str(one["id"]) for one in messages]

    extended = await cli.quick("leases", "extend", token, "--lease", "1h")
    left = await conn.fetchval("select ends_at - clock_timestamp() > interval '59 min' from postbus.lease")
    retried = await cli.quick("leases", "retry", token, ids[0], "--delay", "1m", "--error", "not now", "--json")
    dead = await cli.quick("leases", "dead-letter", token, ids[1], "--reason", "no good", "--error", "why", "--json")
    released = await cli.quick("leases", "release", token, ids[2])
    acked = await cli.quick("leases", "ack", token, ids[3])

    assert extended.done().err == "extended the lease\n"
    assert left
    assert retried.done().lines == [{"id": int(ids[0]), "outcome": "retried"}]
    assert dead.done().json == {"token": token, "outcome": "dead", "ids": [int(ids[1])]}
    assert (released.done().err, acked.done().err) == ("released: 1 message\n", "acked: 1 message\n")
    rows = await conn.fetch("select state, last_error from postbus.messages where topic = 'jobs' order by id")
    assert [tuple(row) for row in rows] == [("retrying", "not now"), ("dead", "no good: why"), ("waiting", None)]


async def test_whole_lease_is_acknowledged_without_ids(cli: Cli, bus: Bus, conn: Any) -> None:
    """The result can be JSON, too."""
    await send_numbers(bus, "jobs", 4)
    first, second = await popped(cli, "jobs", "-n", "2"), await popped(cli, "jobs", "-n", "2")

    assert (await cli.quick("leases", "ack", first[0]["token"])).done().err == "acked the lease\n"
    as_json = (await cli.quick("leases", "ack", second[0]["token"], "--json")).done().json

    assert as_json == {"token": second[0]["token"], "outcome": "acked"}
    assert await states_of(conn, "jobs") == {}


@pytest.mark.parametrize(
    "settlement", ["ack", "ack 5", "retry 5", "dead-letter 5 --reason x", "release 5", "extend --lease 5s"]
)
async def test_lost_lease_ends_with_4(cli: Cli, settlement: str) -> None:
    """The error has a remedy."""
    name, *rest = settlement.split()

    refused = (await cli.quick("leases", name, str(uuid4()), *rest, "--json")).failed(4)

    assert refused.error["code"] == "PB423"
    assert "lost" in refused.error["message"]
    assert refused.error["remedy"]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("pop", "no such name"), 4),
        (("pop", "jobs", "--batch", "0"), 2),
        (("pop", "jobs", "--wait", "soon"), 4),
        (("pop", "jobs", "--lease", "10ms"), 4),
        (("pop", "jobs", "--auto-ack", "--lease", "5s"), 4),
        (("pop", "jobs", "--group", "g"), 4),
        (("pop",), 4),
        (("pop", "jobs", "--mode", "all"), 4),
        (("pop", "events", "--group", "g", "--mode", "soon"), 2),
        (("leases", "ack", "no-token"), 2),
        (("leases", "retry", str(uuid4())), 2),
        (("leases", "extend", str(uuid4()), "--lease", "0"), 4),
    ],
)
async def test_bad_pop_input_is_refused(cli: Cli, args: tuple[str, ...], code: int) -> None:
    """The exit code says who can correct it."""
    result: Result = await cli.quick(*args)

    assert result.failed(code).err
