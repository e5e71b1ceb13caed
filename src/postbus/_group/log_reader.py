"""Reading the log: one read serves all groups of the process that stand at the same place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from postbus._content.segment import ReadResult
from postbus._db.store import Store
from postbus._runtime.log_events import event

_KEPT_PIECES = 64
_KEPT_BYTES = 64 << 20
_KEPT_SECONDS = 30.0

_Key = tuple[str, tuple[int, ...], str, datetime]


class _Kept:
    """A piece for groups that have not had it."""

    __slots__ = ("at", "left", "piece")

    def __init__(self, piece: ReadResult, left: int) -> None:
        self.piece = piece
        self.left = left
        """How many may still come for it."""
        self.at = time.monotonic()


class LogReader:
    """Reads pieces of the log, and keeps the last ones for groups that come to the same place a moment later."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lane_sets: Counter[tuple[str, tuple[int, ...]]] = Counter()
        """How many there are for the same lanes of a topic: those can share."""
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._under_way: dict[_Key, asyncio.Future[ReadResult | None]] = {}
        self._targets: dict[str, tuple[float, str]] = {}
        self._goes_first: dict[str, asyncio.Lock] = {}

    @contextmanager
    def reading(self, topic: str, lanes: tuple[int, ...]) -> Iterator[None]:
        """While a lane set reads: what others read is kept for it."""
        self._lane_sets[topic, lanes] += 1
        try:
            yield
        finally:
            self._lane_sets[topic, lanes] -= 1
            if self._lane_sets[topic, lanes] <= 1:
                for key in [key for key in self._kept if key[:2] == (topic, lanes)]:
                    self._drop(key)
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
        is_between: bool,
        max_count: int,
        max_bytes: int,
    ) -> ReadResult:
        """What comes after a cursor of a server, which was taken at `taken_at` (monotonic) or before.

        `is_between`: the cursor may have a target already.
        """
        key = (topic, lanes, cursor, server)
        self._drop_old()
        while True:
            if (kept := self._take(key)) is not None:
                return kept
            if (reading := self._under_way.get(key)) is None:
                break
            shared = await asyncio.shield(reading)
            if shared is not None:  # otherwise whoever read was cancelled, or failed: it is on us
                self._take(key)
                return shared
        reading = self._under_way[key] = asyncio.get_running_loop().create_future()
        piece = None
        try:
            piece = await self._read(key, taken_at, is_between=is_between, max_count=max_count, max_bytes=max_bytes)
        finally:
            del self._under_way[key]
            reading.set_result(piece)
        return piece

    async def _read(
        self, key: _Key, taken_at: float, *, is_between: bool, max_count: int, max_bytes: int
    ) -> ReadResult:
        topic, _, _, server = key
        if is_between:
            return await self._ask(key, None, None, max_count, max_bytes)
        # One at a time goes to a new place; the others read up to it as well. So all stand at the same one
        # afterwards, and share their reads from then on. It has to be a place later than their own. Who comes again
        # comes after those who wait: one of them may find something, and with it a place, where he found nothing.
        known = self._target_after(topic, taken_at)
        if known is None:
            if topic not in self._goes_first:
                self._goes_first[topic] = asyncio.Lock()
            async with self._goes_first[topic]:
                known = self._target_after(topic, taken_at)
                if known is None:
                    began = time.monotonic()
                    piece = await self._ask(key, began, None, max_count, max_bytes)
                    if piece.server == server and piece.target is not None:
                        self._targets[topic] = began, piece.target
                    return piece
        return await self._ask(key, *known, max_count, max_bytes)

    async def _ask(
        self, key: _Key, taken_at: float | None, target: str | None, max_count: int, max_bytes: int
    ) -> ReadResult:
        topic, lanes, cursor, server = key
        began = time.monotonic()
        piece = await self._store.read_log(
            topic, lanes, cursor, max_count=max_count, max_bytes=max_bytes, target=target
        )
        now = time.monotonic()
        piece.seen_at = began if taken_at is None else taken_at
        piece.taken_at = now if taken_at is None else taken_at
        if piece.segments:
            event(logging.DEBUG, "log.read", topic=topic, messages=piece.count, seconds=now - began)
            if piece.server == server:
                self._keep(key, piece)
        return piece

    def forget(self) -> None:
        """The server has crashed: what was read is in doubt."""
        self._kept.clear()
        self._kept_bytes = 0
        self._targets.clear()

    def _target_after(self, topic: str, taken_at: float) -> tuple[float, str] | None:
        known = self._targets.get(topic)
        return known if known is not None and known[0] > taken_at else None

    def _keep(self, key: _Key, piece: ReadResult) -> None:
        others = self._lane_sets[key[:2]] - 1
        if others <= 0:
            return
        self._kept[key] = _Kept(piece, others)
        self._kept_bytes += piece.size
        while len(self._kept) > _KEPT_PIECES or (self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1):
            self._drop(next(iter(self._kept)))

    def _take(self, key: _Key) -> ReadResult | None:
        """What is kept for whoever comes to this place; the last who may come takes it away."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        kept.left -= 1
        if kept.left == 0:
            self._drop(key)
        return kept.piece

    def _drop_old(self) -> None:
        """What was purged, or belonged to a topic that was deleted, must not come back for ever."""
        while self._kept and (first := next(iter(self._kept.items())))[1].at < time.monotonic() - _KEPT_SECONDS:
            self._drop(first[0])

    def _drop(self, key: _Key) -> None:
        self._kept_bytes -= self._kept.pop(key).piece.size
