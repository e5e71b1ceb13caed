"""Hears wake-ups that come through the database."""

from __future__ import annotations

from typing import Any

from postbus._wakeup.waiters import TimedWaker, Wakers, topic_id


class Ear:
    """Hears wake-ups for topics on its own connection."""

    def __init__(self, wakers: Wakers, conn: Any) -> None:
        self._wakers = wakers
        self._conn = conn
        self._fence = wakers.add("fence")
        self._heard: dict[str, TimedWaker] = {}

    def listen(self, topic: str) -> None:
        self._heard[topic] = self._wakers.add(topic)

    async def hears(self, topic: str, *, within: float = 3) -> None:
        """Check that the topic is notified sooner than anybody polls."""
        assert await self._heard[topic].woken_within(within)
        self._heard[topic].clear()

    async def has_heard(self, topic: str) -> bool:
        """Return whether the topic has been notified by now: notifications come in order."""
        self._fence.clear()
        await self._conn.execute("select postbus.wake(array[$1::bigint])", topic_id("fence"))
        assert await self._fence.woken_within(10)
        return await self._heard[topic].woken_within(0)
