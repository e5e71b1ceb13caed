"""A process loses its lanes in the middle of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from postbus import Ack, Bus, Outcome, Retry, Start
from postbus._db.statements.log import ToDefer
from postbus._db.store import Store
from support.eventually import eventually
from support.grouping import create_log, group_row, is_through, publish_numbers
from support.running import running


@pytest.mark.parametrize("transactional", [False, True])
async def test_message_does_not_overtake_those_parked_before_lanes_were_lost(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """A batch parks messages behind a failed one, the process loses the lane, and no later message is handled.

    1. Message 0 fails and waits for its second attempt.
    2. The batch of 1, 2 and 3 has the same key. Message 1 is parked.
    3. A connection breaks, so the process forgets its lanes, and with them that message 0 waits.
    4. Messages 2 and 3 must not be handled: they come again, behind 0 and 1. No transaction begins for them either,
       although the lane has not been released yet.
    """
    await create_log(bus, lanes=1)
    handled: list[int] = []
    tried: set[int] = set()
    lost: list[UUID] = []
    defer, hold_lane = Store.defer, Store.hold_lane

    async def defer_and_lose(store: Store, *args: Any, **options: Any) -> Any:
        told = await defer(store, *args, **options)
        kinds = [one.kind for one in args[3] if isinstance(one, ToDefer)]
        if kinds == ["park"] and "lost" not in events:
            events.append("lost")
            lost.append(args[2])
            assert bus._worker is not None
            assert bus._worker._started_groups is not None
            bus._worker._started_groups.server_may_have_crashed()
        return told

    events: list[str] = []

    async def hold(store: Store, token: UUID, conn: Any) -> bool:
        if token in lost:
            events.append("began")
        return await hold_lane(store, token, conn)

    monkeypatch.setattr(Store, "defer", defer_and_lose)
    monkeypatch.setattr(Store, "hold_lane", hold)

    async def handle(numbers: list[int]) -> Sequence[Outcome]:
        if 0 in numbers and not tried:
            tried.add(0)
            return [Retry(delay=1)] * len(numbers)
        handled.extend(numbers)
        return [Ack()] * len(numbers)

    async def handle_in_transaction(numbers: list[int], conn: Any) -> Sequence[Outcome]:
        return await handle(numbers)

    async def message_0_waits() -> None:
        assert (await group_row(conn, "g", "t"))["retrying"] == 1

    chosen: Any = handle_in_transaction if transactional else handle
    bus.subscribe("t", group="g", start=Start.BEGINNING, batch=10, transactional=transactional)(chosen)
    async with running(bus):
        await publish_numbers(bus, [0], keys=1)
        await eventually(message_0_waits)
        await publish_numbers(bus, [1, 2, 3], keys=1)
        await is_through(conn, passed=4)

    assert events == ["lost"]
    assert handled == [0, 1, 2, 3]
