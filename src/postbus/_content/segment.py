"""Segments of the log, which are decoded once for all groups that read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from postbus._content.codec import Decoder, lines_of
from postbus.message import DEFAULT_PRIORITY, Message

_NUMBER = (1 << 43) - 1
NO_HEADERS: Mapping[str, str] = {}


class Segment:
    """Messages that were published together, in one lane."""

    __slots__ = (
        "_count",
        "_decoded",
        "_lines",
        "_payloads",
        "content_type",
        "content_types",
        "correlation_ids",
        "first_index",
        "headers",
        "keys",
        "lane",
        "published_at",
        "sequence",
        "source",
        "topic",
    )

    def __init__(self, topic: str, row: Any, source: str) -> None:
        self.topic = topic
        self.source = source
        self.sequence: int = row["sequence"]
        self.lane: int = row["lane"]
        self.first_index: int = row["first_index"]
        self.published_at: datetime = row["published_at"]
        self.content_type: str = row["content_type"]
        self.content_types: Sequence[str | None] | None = row["content_types"]
        self.keys: Sequence[str | None] | None = row["keys"]
        self.correlation_ids: Sequence[str | None] | None = row["correlation_ids"]
        self.headers: Sequence[str | None] | None = row["headers"]
        self._count: int = row["count"]
        payloads: Sequence[bytes] = row["payloads"]
        is_apart = len(payloads) == self._count
        self._payloads = payloads if is_apart else None
        self._lines = None if is_apart else payloads[0]
        """All payloads, as they were encoded together."""
        self._decoded: dict[Decoder, list[Any]] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def payloads(self) -> Sequence[bytes]:
        if self._payloads is None:
            assert self._lines is not None
            self._payloads = lines_of(self._lines, self._count)
        return self._payloads

    def message_id(self, index: int) -> int:
        return (self.sequence & _NUMBER) * 1024 + index

    def key(self, index: int) -> str | None:
        return None if self.keys is None else self.keys[index]

    def type_of(self, index: int) -> str:
        own = None if self.content_types is None else self.content_types[index]
        return own or self.content_type

    def message(self, index: int) -> Message:
        headers = None if self.headers is None else self.headers[index]
        return Message(
            self.message_id(index),
            self.topic,
            self.payloads[index],
            self.type_of(index),
            self.key(index),
            NO_HEADERS if headers is None else json.loads(headers),
            None if self.correlation_ids is None else self.correlation_ids[index],
            DEFAULT_PRIORITY,
            1,
            self.published_at,
            self.source,
        )

    def decoded(self, decode: Decoder) -> list[Any]:
        """All payloads, decoded once for all groups. Raises the error of the first bad one.

        Groups share the list, so nobody may change it.
        """
        known = self._decoded.get(decode)
        if known is None:
            known = self._decode(decode)
            if decode.is_shareable:
                self._decoded[decode] = known
        return known

    def _decode(self, decode: Decoder) -> list[Any]:
        if self._lines is not None:
            decoded = decode.lines(self._lines, self._count, self.content_type)
            if decoded is not None:
                return decoded
        if self.content_types is None:
            return decode.many(self.payloads, self.content_type)
        return [decode(payload, self.type_of(index)) for index, payload in enumerate(self.payloads)]


Part = tuple[Segment, int, int]
"""Messages of a segment, from an index up to another."""


class ReadResult:
    """The result of one read of the log, and the cursor for the next one."""

    __slots__ = (
        "count",
        "during",
        "more",
        "next_cursor",
        "seen_at",
        "segments",
        "server",
        "size",
        "taken_at",
        "target",
        "took",
    )

    def __init__(self, topic: str, rows: Sequence[Any], source: str = "") -> None:
        self.seen_at = 0.0
        """All messages that were visible at this time (monotonic) are in it, unless its cursor has a nearer target."""
        self.taken_at = 0.0
        """Positions that were taken after this time (monotonic) lie behind its end."""
        *found, end = rows
        self.segments = [Segment(topic, row, source) for row in found]
        self.count = sum([row["count"] - row["first_index"] for row in found])
        self.size = sum([row["bytes"] for row in found])
        self.next_cursor: str = end["next_cursor"]
        self.during: str | None = end["during_cursor"]
        """The cursor while its messages are handled; None if nothing was found."""
        self.more: bool = end["more"]
        self.target: str | None = end["read_target"]
        self.server: datetime = end["server"]
        """The start of the server. Positions that are not stored are not valid on a server that has started anew."""
        self.took: float = end["took"].total_seconds()
        """Seconds that the server took."""
