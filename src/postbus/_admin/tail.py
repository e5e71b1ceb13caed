"""Following a topic without consuming from it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from postbus._db.statements.pages import LAST, Page, Row
from postbus._db.store import Store

_PAGE = 500  # messages, …
_PAGE_BYTES = 8 << 20  # … and bytes, that are in memory at the same time
_LATE = 10.0  # seconds after which a smaller id is no longer expected

SortKey = tuple[int, int]
_START: SortKey = (0, -1)
_END: SortKey = (LAST, 0)


class TopicTail:
    """Finds each message once.

    Places are given at publishing but messages appear at commit, so a smaller one may appear after a larger
    one. It looks back as far as the largest place that it knew some seconds ago.
    """

    def __init__(self, store: Callable[[], Awaitable[Store]], topic: str, *, is_log: bool = False) -> None:
        self._store = store
        self._topic = topic
        self._is_log = is_log
        self._seen: dict[int, SortKey] = {}
        self._floor = _START
        self._tops: deque[tuple[float, SortKey]] = deque()

    async def _page(self, after: SortKey) -> Page:
        """Messages after a place."""
        store = await self._store()
        if self._is_log:
            return await store.log_page(self._topic, after=after, limit=_PAGE, max_bytes=_PAGE_BYTES)
        return await store.queue_page(self._topic, after=after[0], limit=_PAGE, max_bytes=_PAGE_BYTES)

    async def _newest(self, count: int) -> list[Row]:
        """The last messages, without their payloads."""
        store = await self._store()
        if self._is_log:
            page = await store.log_page(
                self._topic, after=_END, limit=count, max_bytes=LAST, newest=True, payloads=False
            )
        else:
            page = await store.queue_page(self._topic, limit=count, max_bytes=LAST, newest=True, payloads=False)
        return page.rows

    async def newest(self, count: int) -> AsyncIterator[Row]:
        """The last messages there are."""
        known = await self._newest(max(count, _PAGE))
        self._remember(known)
        self._floor = _sort_key(known[0]) if known else _START
        if not known or not count:
            return
        after, last = _before(known[-count:][0], is_log=self._is_log), _sort_key(known[-1])
        while True:
            page = await self._page(after)
            for row in page.rows:
                after = _sort_key(row)
                if after > last:
                    return
                if row["id"] in self._seen:
                    yield row
            if not page.more:
                return

    async def all_messages(self) -> AsyncIterator[Row]:
        """All messages there are."""
        while True:
            page = await self._page(self._floor)
            if page.rows:
                self._seen.clear()
                self._remember(page.rows)
                self._floor = _sort_key(page.rows[-1])
            for row in page.rows:
                yield row
            if not page.more:
                break
        self._floor = min(self._seen.values(), default=_START)

    async def new_messages(self) -> AsyncIterator[Row]:
        """Those that have appeared since the last look."""
        self._raise_floor()
        after = self._floor
        while True:
            page = await self._page(after)
            new = [row for row in page.rows if row["id"] not in self._seen]
            self._remember(new)
            for row in new:
                yield row
            if not page.more:
                return
            after = _sort_key(page.rows[-1])

    @property
    def floor(self) -> SortKey:
        """All up to here was found."""
        return self._floor

    def go_on_after(self, floor: SortKey) -> None:
        """Begin with what lies above a floor that another follower had."""
        self._floor = floor

    def _remember(self, rows: list[Row]) -> None:
        if rows:
            self._seen.update((row["id"], _sort_key(row)) for row in rows)
            self._tops.append((time.monotonic(), _sort_key(rows[-1])))

    def _raise_floor(self) -> None:
        before = self._floor
        while self._tops and self._tops[0][0] < time.monotonic() - _LATE:
            self._floor = max(self._floor, self._tops.popleft()[1])
        if self._floor != before:
            self._seen = {one: place for one, place in self._seen.items() if place > self._floor}


def _sort_key(row: Row) -> SortKey:
    """What messages are in the order of."""
    return (row["sequence"], row["index"]) if "sequence" in row else (row["id"], 0)


def _before(row: Row, *, is_log: bool) -> SortKey:
    """The place that a message is the first after."""
    position, index = _sort_key(row)
    return (position, index - 1) if is_log else (position - 1, 0)
