"""Which messages of a group are deferred, in the lanes of this process."""

from __future__ import annotations

import heapq
from collections.abc import Collection

from postbus.message import Message


class _IdsOfKey:
    """The ids of the deferred messages of one key, and the lowest of them."""

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
    """The deferred messages in the lanes of this process, and those that were settled before the log brings them."""

    def __init__(self, *, blocks: bool) -> None:
        self._blocks = blocks
        """Whether a message waits behind a deferred one of its key."""
        self._keys_and_lanes: dict[int, tuple[str | None, int]] = {}
        """By the ids of deferred messages."""
        self._by_key: dict[str, _IdsOfKey] = {}
        self._ahead: set[int] = set()
        """Deferred messages that the log will still bring, because an earlier holder of the lane deferred them."""
        self._settled: dict[int, int] = {}
        """Lanes of settled messages that the log will still bring, by id."""

    def __bool__(self) -> bool:
        return bool(self._keys_and_lanes)

    @property
    def affects_log(self) -> bool:
        """Whether each message that the log brings has to be checked."""
        return bool(self._keys_and_lanes or self._settled)

    def skips(self, message_id: int) -> bool:
        """Whether a message that the log brings now is to be left out, because it is deferred or settled."""
        self._ahead.discard(message_id)
        is_settled = self._settled.pop(message_id, None) is not None  # it may also be deferred
        return is_settled or message_id in self._keys_and_lanes

    def take_over(self, message_id: int, key: str | None, lane: int, *, is_done: bool, ahead: bool) -> None:
        """Add a message that an earlier holder of the lane has deferred, or has settled ahead of the cursor."""
        if is_done:
            self._settled[message_id] = lane
            return
        self.add(message_id, key, lane)
        if ahead:
            self._ahead.add(message_id)

    def add(self, message_id: int, key: str | None, lane: int) -> None:
        if message_id in self._keys_and_lanes:
            return
        self._keys_and_lanes[message_id] = key, lane
        if key is not None and self._blocks:
            self._by_key.setdefault(key, _IdsOfKey()).add(message_id)

    def remove(self, message_id: int) -> None:
        """Forget a message that is settled, or whose lane is no longer ours."""
        key, lane = self._keys_and_lanes.pop(message_id, (None, 0))
        if message_id in self._ahead:
            self._ahead.remove(message_id)
            self._settled[message_id] = lane
        if key is not None and (of_key := self._by_key.get(key)) is not None:
            of_key.ids.discard(message_id)
            if not of_key.ids:
                del self._by_key[key]

    def remove_lanes(self, lanes: Collection[int]) -> None:
        """Forget the messages of lanes that are no longer ours."""
        for message_id in [one for one, (_, lane) in self._keys_and_lanes.items() if lane in lanes]:
            self.remove(message_id)
        self._settled = {one: lane for one, lane in self._settled.items() if lane not in lanes}

    def is_blocked(self, key: str | None) -> bool:
        """Whether new messages of a key have to be parked."""
        return key is not None and key in self._by_key

    def is_behind(self, message: Message) -> bool:
        """Whether an earlier message of the same key is deferred."""
        return message.key is not None and message.key in self._by_key and self._by_key[message.key].first < message.id
