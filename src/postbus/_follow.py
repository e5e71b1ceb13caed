"""Following a topic without consuming from it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from postbus.admin import Admin

_PAGE = 500
_LATE = 10.0  # seconds after which a smaller id is no longer expected

Row = dict[str, Any]
Place = tuple[int, int]
_START: Place = (0, -1)


class Follower:
    """Finds each message once.

    Places are given at publishing but messages appear at commit, so a smaller one may appear after a larger
    one. It looks back as far as the largest place that it knew some seconds ago.
    """

    def __init__(self, admin: Admin, topic: str, *, is_log: bool = False) -> None:
        self._admin = admin
        self._topic = topic
        self._is_log = is_log
        self._seen: dict[int, Place] = {}
        self._floor = _START
        self._tops: deque[tuple[float, Place]] = deque()

    async def _page(self, *, after: Place = _START, limit: int = _PAGE, newest: bool = False) -> list[Row]:
        if self._is_log:
            return await self._admin.log(self._topic, after=after, limit=limit, newest=newest)
        return await self._admin.messages(self._topic, after_id=after[0], limit=limit, newest=newest)

    async def newest(self, count: int) -> AsyncIterator[Row]:
        """The last messages there are."""
        rows = await self._page(limit=max(count, _PAGE), newest=True)
        self._remember(rows)
        self._floor = _place(rows[0]) if rows else _START
        for row in rows[len(rows) - count :] if count < len(rows) else rows:
            yield row

    async def all_messages(self) -> AsyncIterator[Row]:
        """All messages there are."""
        while rows := await self._page(after=self._floor):
            self._seen.clear()
            self._remember(rows)
            self._floor = _place(rows[-1])
            for row in rows:
                yield row
        self._floor = min(self._seen.values(), default=_START)

    async def new_messages(self) -> AsyncIterator[Row]:
        """Those that have appeared since the last look."""
        self._raise_floor()
        after = self._floor
        while rows := await self._page(after=after):
            after = _place(rows[-1])
            new = [row for row in rows if row["id"] not in self._seen]
            self._remember(new)
            for row in new:
                yield row

    @property
    def floor(self) -> Place:
        """All up to here was found."""
        return self._floor

    def go_on_after(self, floor: Place) -> None:
        """Begin with what lies above a floor that another follower had."""
        self._floor = floor

    def _remember(self, rows: list[Row]) -> None:
        if rows:
            self._seen.update((row["id"], _place(row)) for row in rows)
            self._tops.append((time.monotonic(), _place(rows[-1])))

    def _raise_floor(self) -> None:
        before = self._floor
        while self._tops and self._tops[0][0] < time.monotonic() - _LATE:
            self._floor = max(self._floor, self._tops.popleft()[1])
        if self._floor != before:
            self._seen = {one: place for one, place in self._seen.items() if place > self._floor}


def _place(row: Row) -> Place:
    """What messages are in the order of."""
    return (row["position"], row["index"]) if "position" in row else (row["id"], 0)
