"""Lines of waiting pops: their arrivals, searches and departures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from postbus._db.statements.queue import Pulled
from postbus._pull.waiters import PopWaiters

_NOTHING = Pulled([], more=False, next_due=None, floor=None)


async def test_pop_that_searches_after_its_time_may_find_its_line_gone() -> None:
    """Its time ended while the first pop searched: it searches on its own, and the first one has left by then."""
    place = PopWaiters()

    def asked(until: asyncio.Event, is_asked: asyncio.Event) -> Callable[[], Awaitable[Pulled]]:
        async def look() -> Pulled:
            is_asked.set()
            await until.wait()
            return _NOTHING

        return look

    first_looks, second_looks, first_may, second_may = (asyncio.Event() for _ in range(4))
    first = asyncio.create_task(place.wait(None, 0.01, asked(first_may, first_looks)))
    await first_looks.wait()
    second = asyncio.create_task(place.wait(None, 0.01, asked(second_may, second_looks)))
    await second_looks.wait()
    first_may.set()
    assert await first == []
    second_may.set()

    assert await second == []
    assert place.is_empty
