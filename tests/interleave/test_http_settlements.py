"""Requests that settle the same leases at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from http_api.serving import client, serving
from postbus import Bus
from support.eventually import eventually
from support.fix_database import Connect


async def _two_leases(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Pop two messages under a lease each. Returns them in the order of their tokens."""
    await http.post("/v1/topics/jobs/messages", json=[{"payload": 1}, {"payload": 2}])
    popped = [(await http.post("/v1/topics/jobs/pop", json={})).json()["messages"][0] for _ in range(2)]
    return sorted(popped, key=lambda one: str(one["token"]))


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/ack", "messages"), ("/v1/transaction", "ack")], ids=["ack", "transaction"]
)
async def test_request_locks_leases_in_the_order_of_tokens(bus: Bus, connect: Connect, path: str, field: str) -> None:
    """It waits for the first lease before it locks the second, so two such requests never wait for each other."""
    other, observer = await connect(), await connect()
    pid = other.get_server_pid()

    async def request_waits() -> None:
        assert await observer.fetchval(
            "select exists (select from pg_stat_activity where $1::int = any (pg_blocking_pids(pid)))", pid
        )

    async with serving(bus) as url, client(url) as http:
        first, second = await _two_leases(http)
        async with other.transaction():
            await other.execute("select from postbus.lease where token = $1 for update", first["token"])
            settling = asyncio.create_task(http.post(path, json={field: [second, first]}))
            await eventually(request_waits)
            free = await other.fetch(
                "select from postbus.lease where token = $1 for update skip locked", second["token"]
            )
        answer = await settling

    assert len(free) == 1
    assert answer.status_code == 200, answer.text
    assert await bus.admin.messages("jobs") == []
