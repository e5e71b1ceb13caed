"""Reading the log: one read serves all groups of the process that stand at the same place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from datetime import datetime

from postbus._log import event
from postbus._segment import Piece
from postbus._store import Store

_KEPT_PIECES = 64
_KEPT_BYTES = 64 << 20
_KEPT_SECONDS = 30.0

_Key = tuple[str, tuple[int, ...], str, datetime]


class LogReader:
    """Reads pieces of the log, and keeps the last ones for groups that come to the same place a moment later."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[_Key, tuple[float, Piece]] = OrderedDict()
        self._kept_bytes = 0
        self._under_way: dict[_Key, asyncio.Future[Piece | None]] = {}
        self._targets: dict[str, tuple[float, str]] = {}
        self._going_first: dict[str, asyncio.Future[Piece | None]] = {}

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
    ) -> Piece:
        """What comes after a cursor of a server, which was known at `taken_at` (monotonic).

        `is_between`: the cursor may have a target already.
        """
        key = (topic, lanes, cursor, server)
        self._drop_old()
        while True:
            if (kept := self._kept.get(key)) is not None:
                return kept[1]
            if (reading := self._under_way.get(key)) is not None:
                shared = await asyncio.shield(reading)
                if shared is not None:  # otherwise whoever read was cancelled, or failed: it is on us
                    return shared
                continue
            # One at a time goes to a new place; the others read up to it as well. So all stand at the same one
            # afterwards, and share their reads from then on. It has to be a place later than their own.
            target = None if is_between else self._target_after(topic, taken_at)
            goes_first = not is_between and target is None
            if not goes_first or (first := self._going_first.get(topic)) is None:
                break
            await asyncio.shield(first)
        reading = self._under_way[key] = asyncio.get_running_loop().create_future()
        if goes_first:
            self._going_first[topic] = reading
        began = time.monotonic()
        piece = None
        try:
            piece = await self._store.read_log(
                topic, lanes, cursor, max_count=max_count, max_bytes=max_bytes, target=target
            )
        finally:
            del self._under_way[key]
            if goes_first:
                del self._going_first[topic]
            reading.set_result(piece)
        if piece.server == server:
            if goes_first and piece.target is not None:
                self._targets[topic] = began, piece.target
            if piece.segments:
                self._keep(key, piece)
        if piece.segments:
            event(logging.DEBUG, "log.read", topic=topic, messages=piece.count, seconds=time.monotonic() - began)
        return piece

    def forget(self) -> None:
        """The server has crashed: what was read is in doubt."""
        self._kept.clear()
        self._kept_bytes = 0
        self._targets.clear()

    def _target_after(self, topic: str, taken_at: float) -> str | None:
        target_at, target = self._targets.get(topic, (0.0, None))
        return target if target_at > taken_at else None

    def _keep(self, key: _Key, piece: Piece) -> None:
        self._kept[key] = time.monotonic(), piece
        self._kept_bytes += piece.size
        while len(self._kept) > _KEPT_PIECES or (self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1):
            self._drop_first()

    def _drop_old(self) -> None:
        """What was purged, or belonged to a topic that was deleted, must not come back for ever."""
        while self._kept and next(iter(self._kept.values()))[0] < time.monotonic() - _KEPT_SECONDS:
            self._drop_first()

    def _drop_first(self) -> None:
        self._kept_bytes -= self._kept.popitem(last=False)[1][1].size
