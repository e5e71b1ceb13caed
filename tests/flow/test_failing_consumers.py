"""A consumer that fails for a reason of its own does not disturb the others of its process."""

from __future__ import annotations

from typing import Any

import pytest

from eventually import eventually
from grouping import create_log
from postbus import Bus, Message
from postbus._claim import Claimer
from postbus._group_handle import GroupHandler
from running import running


async def test_failing_claim_does_not_end_other_consumers(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on; the one that failed is started again, and gets its messages once that helps."""
    got: dict[str, list[int]] = {"bad": [], "good": [], "log": []}
    is_broken, real = True, Claimer.tick

    async def broken(self: Claimer, room: int) -> float:
        if is_broken and self._subscription.topic == "bad":
            raise ZeroDivisionError("broken")
        return await real(self, room)

    monkeypatch.setattr(Claimer, "tick", broken)
    await create_log(bus, "log")
    for topic in ("bad", "good"):

        @bus.subscribe(topic, name=topic)
        async def handle(n: int, message: Message) -> None:
            got[message.topic].append(n)

    bus.subscribe("log", group="g", start="FROM_BEGINNING")(handle)

    async def came(*topics: str) -> None:
        assert all(got[topic] == [1] for topic in topics), got

    async def is_told() -> None:
        assert "consumer.failed" in caplog.text
        assert "ZeroDivisionError: broken" in caplog.text

    async with running(bus) as run:
        for topic in got:
            await bus.send(topic, 1)
        await eventually(is_told)
        await eventually(came, "good", "log")
        is_broken = False
        await eventually(came, "bad")
        assert not run.done()


async def test_failing_task_of_a_group_does_not_end_other_consumers(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on, and the group reads again what it had in hand."""
    got: dict[str, list[int]] = {"queue": [], "log": []}
    breaks, real = iter([True]), GroupHandler.handle_one

    async def broken(self: GroupHandler, *args: Any) -> Any:
        if next(breaks, False):
            raise ZeroDivisionError("broken")
        return await real(self, *args)

    monkeypatch.setattr(GroupHandler, "handle_one", broken)
    await create_log(bus, "log")

    @bus.subscribe("queue")
    async def from_queue(n: int) -> None:
        got["queue"].append(n)

    @bus.subscribe("log", group="g", start="FROM_BEGINNING")
    async def from_log(n: int) -> None:
        got["log"].append(n)

    async def all_came() -> None:
        assert all(set(numbers) == {1, 2} for numbers in got.values()), got

    async with running(bus) as run:
        for n in (1, 2):
            for topic in got:
                await bus.send(topic, n)
        await eventually(all_came, within=20)
        assert not run.done()
