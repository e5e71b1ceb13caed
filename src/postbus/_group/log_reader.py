"""Reads the log: one read serves all groups of the process that stand at the same position."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from postbus._content.segment import ReadResult
from postbus._db.store import Store
from postbus._runtime.log_events import event

_KEPT_RESULTS = 64
_KEPT_BYTES = 64 << 20
_KEPT_SECONDS = 30.0

_Key = tuple[str, tuple[int, ...], str, datetime]


class _Kept:
    """A read result that is kept for groups that have not had it."""

    __slots__ = ("at", "left", "result")

    def __init__(self, result: ReadResult, left: int) -> None:
        self.result = result
        self.left = left
        """How many lane sets may still ask for it."""
        self.at = time.monotonic()


class _Target:
    """The position up to which groups read, so that all of them stand at the same one afterwards."""

    __slots__ = ("began", "position", "taking")

    def __init__(self) -> None:
        self.taking = asyncio.Lock()
        """Held by the read that goes to a new target."""
        self.began = -math.inf
        """When that read began."""
        self.position = ""

    def after(self, taken_at: float) -> tuple[float, str] | None:
        """The target, if it is later than a cursor that was taken at `taken_at`."""
        return (self.began, self.position) if self.began > taken_at else None


class LogReader:
    """Reads the log, and keeps the last results for groups that come to the same position a moment later."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lane_sets: Counter[tuple[str, tuple[int, ...]]] = Counter()
        """How many lane sets have the same lanes of a topic: these can share results."""
        self._under_way: dict[_Key, asyncio.Future[ReadResult | None]] = {}
        self._kept: dict[_Key, _Kept] = {}
        """The oldest result first."""
        self._targets: defaultdict[str, _Target] = defaultdict(_Target)
        """By topic."""

    @contextmanager
    def reading(self, topic: str, lanes: tuple[int, ...]) -> Iterator[None]:
        """Keep the results of other readers for a lane set while the block runs."""
        self._lane_sets[topic, lanes] += 1
        try:
            yield
        finally:
            self._lane_sets[topic, lanes] -= 1
            if self._lane_sets[topic, lanes] <= 1:
                for key in [key for key in self._kept if key[:2] == (topic, lanes)]:
                    del self._kept[key]
            if not self._lane_sets[topic, lanes]:
                del self._lane_sets[topic, lanes]

    async def read(
        self,
        topic: str,
        lanes: tuple[int, ...],
        cursor: str,
        taken_at: float,
        server: datetime,
        *,
        may_have_target: bool,
        max_count: int,
        max_bytes: int,
    ) -> ReadResult:
        """Read on from a cursor, which was taken from `server` at `taken_at` (monotonic) or before.

        `may_have_target`: the cursor may have a target already, up to which the log is read first.
        """
        key = (topic, lanes, cursor, server)
        self._drop_old()
        while True:
            if (kept := self._take(key)) is not None:
                return kept
            if (reading := self._under_way.get(key)) is None:
                break
            shared = await asyncio.shield(reading)
            if shared is not None:  # otherwise the reader failed or was cancelled: we read ourselves
                self._take(key)
                return shared
        reading = self._under_way[key] = asyncio.get_running_loop().create_future()
        result = None
        try:
            result = await self._read(
                key, taken_at, may_have_target=may_have_target, max_count=max_count, max_bytes=max_bytes
            )
        finally:
            del self._under_way[key]
            reading.set_result(result)
        return result

    async def _read(
        self, key: _Key, taken_at: float, *, may_have_target: bool, max_count: int, max_bytes: int
    ) -> ReadResult:
        topic, _, _, server = key
        if may_have_target:
            return await self._query(key, None, None, max_count, max_bytes)
        # One reader at a time goes to a new target, and the others read up to the same target, if it is later than
        # their own cursor. So all stand at the same position afterwards, and share their reads from then on. A reader
        # that found nothing queues again behind those that wait: one of them may find messages, and with them a target.
        target = self._targets[topic]
        known = target.after(taken_at)
        if known is None:
            async with target.taking:
                known = target.after(taken_at)
                if known is None:
                    began = time.monotonic()
                    result = await self._query(key, began, None, max_count, max_bytes)
                    if result.server == server and result.target is not None:
                        target.began, target.position = began, result.target
                    return result
        return await self._query(key, *known, max_count, max_bytes)

    async def _query(
        self, key: _Key, taken_at: float | None, target: str | None, max_count: int, max_bytes: int
    ) -> ReadResult:
        topic, lanes, cursor, server = key
        began = time.monotonic()
        result = await self._store.read_log(
            topic, lanes, cursor, max_count=max_count, max_bytes=max_bytes, target=target
        )
        now = time.monotonic()
        result.seen_at = began if taken_at is None else taken_at
        result.taken_at = now if taken_at is None else taken_at
        if result.segments:
            event(logging.DEBUG, "log.read", topic=topic, messages=result.count, seconds=now - began)
            if result.server == server:
                self._keep(key, result)
        return result

    def forget(self) -> None:
        """Forget all results, because the server may have crashed and they are in doubt."""
        self._kept.clear()
        self._targets.clear()

    def _keep(self, key: _Key, result: ReadResult) -> None:
        """Keep a result for the other lane sets that have the same lanes."""
        others = self._lane_sets[key[:2]] - 1
        if others <= 0:
            return
        self._kept[key] = _Kept(result, others)
        size = sum(kept.result.size for kept in self._kept.values())
        while len(self._kept) > _KEPT_RESULTS or (size > _KEPT_BYTES and len(self._kept) > 1):
            size -= self._kept.pop(next(iter(self._kept))).result.size

    def _take(self, key: _Key) -> ReadResult | None:
        """Take the result that is kept for a position. The last lane set that may ask for it removes it."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        kept.left -= 1
        if kept.left == 0:
            del self._kept[key]
        return kept.result

    def _drop_old(self) -> None:
        """Drop old results. Messages that were purged, or whose topic was deleted, must not come back for ever."""
        while self._kept and (first := next(iter(self._kept.items())))[1].at < time.monotonic() - _KEPT_SECONDS:
            del self._kept[first[0]]
