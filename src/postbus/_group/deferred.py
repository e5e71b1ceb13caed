"""Messages that a group does not handle in the order of the log: tried again, or waiting behind one of their key."""

from __future__ import annotations

import heapq
from collections.abc import Collection

from postbus.message import Message


class _KeyLine:
    """Ids of one key that wait, the lowest first."""

    __slots__ = ("_heap", "ids")

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._heap: list[int] = []

    def add(self, message_id: int) -> None:
        if message_id not in self.ids:
            self.ids.add(message_id)
            heapq.heappush(self._heap, message_id)

    @property
    def first(self) -> int:
        while self._heap[0] not in self.ids:
            heapq.heappop(self._heap)
        return self._heap[0]


class DeferredMessages:
    """Which messages wait, in the lanes that this process holds for a group."""

    def __init__(self, *, blocks: bool) -> None:
        self._blocks = blocks
        """Messages wait behind others of their key."""
        self._places: dict[int, tuple[str | None, int]] = {}  # keys and lanes, by id
        self._lines: dict[str, _KeyLine] = {}
        self._ahead: set[int] = set()
        """Of these, what somebody else had put off, and the log still brings to us."""
        self._settled: dict[int, int] = {}
        """Lanes of messages that the log still brings although they are settled, by id."""

    def __bool__(self) -> bool:
        return bool(self._places)

    @property
    def concerns_log(self) -> bool:
        """Whether messages of the log have to be looked at."""
        return bool(self._places or self._settled)

    def passes_by(self, message_id: int) -> bool:
        """Whether a message that the log brings is to be left out: it waits, or is settled."""
        self._ahead.discard(message_id)
        is_settled = self._settled.pop(message_id, None) is not None  # perhaps although it waits: it was put off
        return is_settled or message_id in self._places

    def take_over(self, message_id: int, key: str | None, lane: int, *, is_done: bool, ahead: bool) -> None:
        """A message that the former holder of a lane has put off, or has settled before its turn."""
        if is_done:
            self._settled[message_id] = lane
            return
        self.add(message_id, key, lane)
        if ahead:
            self._ahead.add(message_id)

    def add(self, message_id: int, key: str | None, lane: int) -> None:
        if message_id in self._places:
            return
        self._places[message_id] = key, lane
        if key is not None and self._blocks:
            self._lines.setdefault(key, _KeyLine()).add(message_id)

    def remove(self, message_id: int) -> None:
        """It is settled, or no longer ours."""
        key, lane = self._places.pop(message_id, (None, 0))
        if message_id in self._ahead:
            self._ahead.remove(message_id)
            self._settled[message_id] = lane
        if key is not None and (line := self._lines.get(key)) is not None:
            line.ids.discard(message_id)
            if not line.ids:
                del self._lines[key]

    def remove_lanes(self, lanes: Collection[int]) -> None:
        """Forget lanes that are somebody else's from now on."""
        for message_id in [one for one, (_, lane) in self._places.items() if lane in lanes]:
            self.remove(message_id)
        self._settled = {one: lane for one, lane in self._settled.items() if lane not in lanes}

    def is_blocked(self, key: str | None) -> bool:
        return key is not None and key in self._lines

    def is_behind(self, message: Message) -> bool:
        """Whether an earlier message of the same key waits."""
        return message.key is not None and message.key in self._lines and self._lines[message.key].first < message.id
