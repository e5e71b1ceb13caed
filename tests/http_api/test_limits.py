"""Limits: bodies, batches, polls and requests per second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from http_api.serving import client, new_token, problem, serving
from http_api.test_consume import polls
from postbus import Bus, InvalidOption
from postbus.errors import TooManyRequests
from postbus.server.quotas import Quotas, RateLimiter
from postbus.server.settings import CallerLimits
from support.eventually import eventually


async def test_too_large_body_is_refused(bus: Bus) -> None:
    """This includes a body without a declared length."""
    async with serving(bus, limits=CallerLimits(max_body=1000)) as url, client(url) as http:
        body = b'{"text": "' + b"x" * 2000 + b'"}'

        async def pieces() -> AsyncIterator[bytes]:
            yield body

        for content in (body, pieces()):
            answer = await http.post(
                "/v1/topics/t/messages", content=content, headers={"content-type": "application/json"}
            )
            problem(answer, 413, "PB443")
        assert (await http.post("/v1/topics/t/messages", json={"text": "x"})).status_code == 201


async def test_too_large_batch_is_refused(bus: Bus) -> None:
    """The limit applies to pushing, popping, settling and transactions."""
    token = "00000000-0000-0000-0000-000000000000"
    held = [{"id": str(n), "token": token} for n in range(3)]
    message = {"payload": 1}
    async with serving(bus, limits=CallerLimits(max_batch=2)) as url, client(url) as http:
        for path, body in (
            ("/v1/topics/t/messages", [message] * 3),
            ("/v1/topics/t/pop", {"count": 3}),
            ("/v1/ack", {"messages": held}),
            ("/v1/transaction", {"ack": held[:1], "push": [{"topic": "t", "messages": [message] * 2}]}),
        ):
            problem(await http.post(path, json=body), 413, "PB443")
        assert (await http.post("/v1/topics/t/messages", json=[message] * 2)).status_code == 201


async def test_polls_are_limited_per_token(bus: Bus) -> None:
    """Beyond the limit a poll or a stream is refused with Retry-After; another token's are not counted."""
    first, second = [await new_token(bus, "consumer", "observer") for _ in range(2)]
    await bus.admin.create_topic("t")
    async with (
        serving(bus, auth=True, limits=CallerLimits(max_polls=1)) as url,
        client(url, first) as http,
        client(url, second) as other,
    ):
        polling = asyncio.create_task(http.post("/v1/topics/t/pop", json={"wait": 30}))

        async def is_waiting() -> None:
            assert polls() == 1

        await eventually(is_waiting)

        answer = await http.post("/v1/topics/t/pop", json={"wait": 1})
        problem(answer, 429, "PB442")
        assert int(answer.headers["retry-after"]) >= 1
        problem(await http.get("/v1/topics/t/follow"), 429, "PB442")
        assert (await http.post("/v1/topics/t/pop", json={})).status_code == 200  # which does not wait
        assert (await other.post("/v1/topics/t/pop", json={"wait": 0.01})).status_code == 200
        await other.aclose()
        await bus.send("t", 1)
        assert len((await polling).json()["messages"]) == 1


async def test_requests_are_limited_per_token(bus: Bus) -> None:
    """Beyond its rate a token is refused with the time to come again, and another one is not."""
    first, second = [await new_token(bus, "observer") for _ in range(2)]
    async with (
        serving(bus, auth=True, limits=CallerLimits(rate=2)) as url,
        client(url, first) as http,
        client(url, second) as other,
    ):
        answers = [await http.get("/v1/topics") for _ in range(20)]
        assert answers[0].status_code == 200
        refused = [one for one in answers if one.status_code != 200]
        problem(refused[0], 429, "PB442")
        assert refused[0].headers["retry-after"] == "1"
        assert (await other.get("/v1/topics")).status_code == 200


def test_bucket_fills_again() -> None:
    """As many requests may come at once as are allowed in a second, and then one by one."""
    quotas = Quotas(CallerLimits(rate=2))
    quotas.admit("a", now=0.0)
    quotas.admit("a", now=0.0)
    with pytest.raises(TooManyRequests) as refused:
        quotas.admit("a", now=0.25)
    assert refused.value.retry_after == pytest.approx(0.25)
    quotas.admit("a", now=0.5)
    with pytest.raises(TooManyRequests):
        quotas.admit("a", now=0.6)


def test_full_buckets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of buckets is bounded by the number of concurrent callers."""
    monkeypatch.setattr("postbus.server.quotas._MOST_BUCKETS", 10)
    buckets = RateLimiter(1.0, 1.0)
    for number in range(100):
        buckets.take(str(number), float(number))
    assert len(buckets._left) <= 11


@pytest.mark.parametrize("bad", [{"max_body": 0}, {"max_batch": 0}, {"max_polls": -1}, {"rate": 0}])
def test_bad_limits_are_refused(bad: dict[str, Any]) -> None:
    """A limit that admits nothing is a mistake."""
    with pytest.raises(InvalidOption):
        CallerLimits(**bad)
