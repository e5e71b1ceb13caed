"""Errors over HTTP: problem details, health, and an unavailable database."""

from __future__ import annotations

import httpx
import pytest

from http_api.serving import client, problem, serving
from postbus import Bus
from support.eventually import eventually
from support.fix_proxy import Proxy, proxy

__all__ = ["proxy"]  # a fixture


async def test_unknown_addresses_are_problems(http: httpx.AsyncClient) -> None:
    """Unknown methods are too, and the answer names the allowed ones."""
    problem(await http.get("/v2/topics"), 404, "PB447")
    problem(await http.get("/nothing"), 404, "PB447")
    assert (await http.get("/")).json()["openapi"] == "/openapi.json"
    answer = await http.put("/v1/topics")
    problem(answer, 405, "PB447")
    assert sorted(answer.headers["allow"].replace(",", " ").split()) == ["GET", "OPTIONS", "POST"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/topics?newst=1"),
        ("GET", "/v1/topics/jobs/messages?limit=1&newst=true"),
        ("POST", "/v1/topics/jobs/messages?dedup_key=a"),
        ("DELETE", "/v1/topics/jobs?forced=true"),
    ],
)
async def test_unknown_query_parameter_is_refused(http: httpx.AsyncClient, bus: Bus, method: str, path: str) -> None:
    """The error names the misspelt parameter and those of the route, and nothing happens."""
    await bus.admin.create_topic("jobs")

    answer = await http.request(method, path, json={"payload": 1} if method == "POST" else None)

    problem(answer, 400, "PB400")
    assert "unknown query parameter" in answer.json()["detail"]
    assert [row.waiting for row in await bus.admin.topics()] == [0]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/topics/none", None, 404, "PB404"),
        ("GET", "/v1/topics/a%20b", None, 400, "PB400"),
        ("POST", "/v1/topics", {"name": "jobs"}, 409, "PB409"),
        ("POST", "/v1/topics", {"name": "x", "options": {"lanes": -1}}, 400, "PB402"),
        ("POST", "/v1/topics", {"name": "x", "options": {"lease": "soon"}}, 400, "PB402"),
        ("PATCH", "/v1/topics/jobs", {}, 400, "PB402"),
        ("DELETE", "/v1/topics/jobs", None, 409, "PB408"),
        ("POST", "/v1/topics/events/pause", None, 409, "PB432"),
        ("PUT", "/v1/topics/jobs/groups/g", {}, 409, "PB432"),
        ("GET", "/v1/topics/events/groups/none", None, 404, "PB406"),
        ("POST", "/v1/topics/events/groups/none/seek", {"start": "FROM_MESSAGE_ID"}, 400, "PB402"),
        ("PUT", "/v1/topics/events/groups/g", {"timestamp": "2030-01-31T18:00:00Z"}, 400, "PB402"),
        ("GET", "/v1/topics/jobs/dead-letters/7", None, 404, "PB405"),
        ("GET", f"/v1/topics/jobs/messages/{2**63}", None, 400, "PB400"),
        ("POST", "/v1/topics/jobs/pop", {"lease": 0}, 400, "PB402"),
        ("POST", "/v1/topics/jobs/pop", {"wait": 61}, 400, "PB400"),
        ("POST", "/v1/topics/jobs/pop", {"count": 100_000}, 413, "PB443"),
        ("POST", "/v1/ack", {"messages": []}, 400, "PB400"),
        ("POST", "/v1/ack", {"messages": [{"id": "1", "token": "no"}]}, 400, "PB400"),
        ("POST", "/v1/transaction", {}, 400, "PB400"),
        ("POST", "/v1/topics/jobs/dead-letters/redrive", {"ids": ["7"]}, 404, "PB405"),
        ("GET", "/v1/webhooks/none", None, 404, "PB445"),
        ("POST", "/v1/webhooks", {"name": "w", "topic": "jobs", "url": "ftp://x"}, 400, "PB402"),
        ("POST", "/v1/webhooks", {"name": "w", "topic": "events", "url": "http://x"}, 409, "PB432"),
        ("POST", "/v1/webhooks", {"name": "w", "topic": "jobs", "url": "http://x", "secret": "x"}, 400, "PB402"),
        ("POST", "/v1/webhooks", {"name": "w", "topic": "jobs", "url": "http://x", "concurrency": 0}, 400, "PB402"),
    ],
)
async def test_errors_have_status_code_and_remedy(
    http: httpx.AsyncClient, bus: Bus, method: str, path: str, body: object, status: int, code: str
) -> None:
    """The status is the kind of error, the code which one, and the remedy what to do."""
    await bus.admin.create_topic("jobs")
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await bus.send("jobs", 1)

    problem(await http.request(method, path, json=body), status, code)


async def test_unavailable_database_is_503(proxy: Proxy) -> None:
    """Requests are answered with Retry-After until the database is back."""
    async with Bus.open(proxy.dsn) as bus, serving(bus) as url, client(url) as http:
        assert (await http.get("/readyz")).json() == {"status": "ok"}
        proxy.cut()

        async def is_unready() -> None:
            problem(await http.get("/readyz"), 503, "PB504")

        await eventually(is_unready)
        for method, path, body in (
            ("GET", "/readyz", None),
            ("GET", "/v1/topics", None),
            ("POST", "/v1/topics/t/messages", {"payload": 1}),
            ("POST", "/v1/topics/t/pop", {}),
        ):
            answer = await http.request(method, path, json=body)
            problem(answer, 503, "PB504")
            assert int(answer.headers["retry-after"]) >= 1
        assert (await http.get("/livez")).json() == {"status": "ok"}
        proxy.heal()

        async def is_ready() -> None:
            assert (await http.get("/readyz")).status_code == 200

        await eventually(is_ready)


async def test_wrong_schema_is_not_ready(http: httpx.AsyncClient, bus: Bus) -> None:
    """A database migrated by a newer Postbus makes the server not ready."""
    store = await bus.connect()
    async with store.connection() as own:
        await own.execute("insert into postbus.migration (number, name, breaking) values (9999, 'later', true)")
    problem(await http.get("/readyz"), 503, "PB503")
