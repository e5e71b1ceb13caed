"""Scopes in tests: groups on several topics, and records that are made older than they are."""

from __future__ import annotations

from typing import Any

from postbus import Bus, Message
from support.eventually import eventually


def gather(bus: Bus, group: str, topic: str | None = None, **options: Any) -> list[tuple[str, Any]]:
    """Subscribe a handler to a scope that records the topics and payloads it gets. Returns their list."""
    got: list[tuple[str, Any]] = []

    @bus.subscribe(topic, group=group, name="gatherer", **options)
    async def handle(payload: Any, message: Message) -> None:
        got.append((message.topic, payload))

    return got


async def gets(got: list[tuple[str, Any]], *payloads: Any, within: float = 10.0) -> None:
    """Wait until a group has got these payloads, in any order, and check that it has got no others."""

    async def all_of_them() -> None:
        assert sorted(payload for _, payload in got) == sorted(payloads)

    await eventually(all_of_them, within=within)


async def age(conn: Any, seconds: float) -> None:
    """Make everything published and recorded this much older."""
    await conn.execute("update postbus.segment set published_at = published_at - make_interval(secs => $1)", seconds)
    await conn.execute(
        "update postbus.scope set recorded_at = recorded_at - make_interval(secs => $1), "
        "start_at = start_at - make_interval(secs => $1)",
        seconds,
    )
