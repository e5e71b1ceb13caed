"""A real server within a test, and ways to call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx

from postbus import Bus
from postbus.results.access import TokenRole
from postbus.server.serve import HttpServer
from postbus.server.settings import ServerSettings


@asynccontextmanager
async def serving(bus: Bus, **settings: Any) -> AsyncIterator[str]:
    """Run a server on the test's bus and return its address; it ends with the block."""
    server = HttpServer(bus, ServerSettings(port=0, **{"webhook_allow": ("127.0.0.1",), **settings}))
    stop = asyncio.Event()
    running = asyncio.create_task(server.run(stop))
    try:
        yield server.url
    finally:
        stop.set()
        await running


@asynccontextmanager
async def client(url: str, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client of a server."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False) as opened:
        yield opened


async def new_token(bus: Bus, *roles: str, topics: tuple[str, ...] = ("*",), **limits: Any) -> str:
    """Make a token with these roles."""
    given = cast("list[TokenRole]", list(roles))
    return (await bus.admin.create_token("test", given, topics=list(topics), **limits)).token


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the problem details of an answer, after checking status and code."""
    told: dict[str, Any] = answer.json()
    assert answer.status_code == status, told
    assert answer.headers["content-type"] == "application/problem+json"
    assert told["status"] == status
    assert told["code"] == code
    assert told["type"] == f"urn:postbus:{code}"
    assert told["title"]
    assert told["detail"]
    assert told["remedy"]
    return told
