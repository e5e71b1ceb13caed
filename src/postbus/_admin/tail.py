"""Following a topic without consuming from it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from postbus._db.statements.pages import LAST, Page
from postbus._db.store import Store
from postbus.results.messages import LogMessage, QueueMessage

_PAGE = 500  # messages, …
_PAGE_BYTES = 8 << 20  # … and bytes, that are in memory at the same time
_LATE = 10.0  # seconds after which a smaller id is no longer expected

SortKey = tuple[int, int]
TailMessage = QueueMessage | LogMessage
_START: SortKey = (0, -1)
_END: SortKey = (LAST, 0)


class TopicTail:
    """Finds each message of a topic once.

    Sort keys are given at publishing, but messages appear at commit, so a message with a smaller key may appear after
    one with a larger key. Each look therefore goes back as far as the largest key known some seconds ago.
    """

    def __init__(self, store: Callable[[], Awaitable[Store]], topic: str, *, is_log: bool = False) -> None:
        self._store = store
        self._topic = topic
        self._is_log = is_log
        self._seen: dict[int, SortKey] = {}
        self._found_up_to = _START
        self._tops: deque[tuple[float, SortKey]] = deque()

    async def _page(self, after: SortKey) -> Page[QueueMessage] | Page[LogMessage]:
        """Messages after a sort key."""
        store = await self._store()
        if self._is_log:
            return await store.log_page(self._topic, after=after, limit=_PAGE, max_bytes=_PAGE_BYTES)
        return await store.queue_page(self._topic, after=after[0], limit=_PAGE, max_bytes=_PAGE_BYTES)

    async def _newest(self, count: int) -> Sequence[TailMessage]:
        """The last messages, without their payloads."""
        store = await self._store()
        if self._is_log:
            in_log = await store.log_page(
                self._topic, after=_END, limit=count, max_bytes=LAST, newest=True, payloads=False
            )
            return in_log.found
        queued = await store.queue_page(self._topic, limit=count, max_bytes=LAST, newest=True, payloads=False)
        return queued.found

    async def newest(self, count: int) -> AsyncIterator[TailMessage]:
        """The last messages there are."""
        known = await self._newest(max(count, _PAGE))
        self._remember(known)
        self._found_up_to = _sort_key(known[0]) if known else _START
        if not known or not count:
            return
        after, last = _before(known[-count:][0]), _sort_key(known[-1])
        while True:
            page = await self._page(after)
            for one in page.found:
                after = _sort_key(one)
                if after > last:
                    return
                if one.id in self._seen:
                    yield one
            if not page.more:
                return

    async def all_messages(self) -> AsyncIterator[TailMessage]:
        """All messages there are."""
        while True:
            page = await self._page(self._found_up_to)
            if page.found:
                self._seen.clear()
                self._remember(page.found)
                self._found_up_to = _sort_key(page.found[-1])
            for one in page.found:
                yield one
            if not page.more:
                break
        self._found_up_to = min(self._seen.values(), default=_START)

    async def new_messages(self) -> AsyncIterator[TailMessage]:
        """The messages that have appeared since the last look."""
        self._forget_old()
        after = self._found_up_to
        while True:
            page = await self._page(after)
            new = [one for one in page.found if one.id not in self._seen]
            self._remember(new)
            for one in new:
                yield one
            if not page.more:
                return
            after = _sort_key(page.found[-1])

    @property
    def found_up_to(self) -> SortKey:
        """The sort key up to which every message was found."""
        return self._found_up_to

    def go_on_after(self, key: SortKey) -> None:
        """Begin after the sort key up to which another tail had found everything."""
        self._found_up_to = key

    def _remember(self, messages: Sequence[TailMessage]) -> None:
        if messages:
            self._seen.update((one.id, _sort_key(one)) for one in messages)
            self._tops.append((time.monotonic(), _sort_key(messages[-1])))

    def _forget_old(self) -> None:
        before = self._found_up_to
        while self._tops and self._tops[0][0] < time.monotonic() - _LATE:
            self._found_up_to = max(self._found_up_to, self._tops.popleft()[1])
        if self._found_up_to != before:
            self._seen = {one: key for one, key in self._seen.items() if key > self._found_up_to}


def _sort_key(message: TailMessage) -> SortKey:
    """The sort key of messages."""
    return (message.sequence, message.index) if isinstance(message, LogMessage) else (message.id, 0)


def _before(message: TailMessage) -> SortKey:
    """The sort key just before a message's."""
    first, index = _sort_key(message)
    return (first, index - 1) if isinstance(message, LogMessage) else (first - 1, 0)
