"""The ways of consuming that are put to the test, and what each of them promises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

LEASE = "2s"
RELAY = "relay-faults"
"""The group that sends messages from one topic to another."""


class Mode(NamedTuple):
    """A topic, and how it is consumed."""

    name: str
    options: dict[str, Any]
    groups: tuple[str, ...] = ("",)
    """Of a log; a queue has none."""
    in_order: bool = False
    """Messages of one key come one after the other."""
    transactional: bool = False
    """A handler's effect commits with its settlement: once."""
    inbox: bool = False
    """A handler's effect commits, in a transaction of its own, with the note that the message is done: once."""
    has_receipts: bool = False
    is_relayed: bool = False
    """Messages are published to another topic, and come to this one by a relay."""
    pulled: bool = False
    """Consumers pop batches, instead of being called."""
    is_streamed: bool = False
    """Each group is a relay into a stream that all such modes share, and what counts is what the stream has stored."""
    database: str = "postbus"
    topic_name: str = ""
    """Where it is not that of the mode."""

    @property
    def once(self) -> bool:
        """Effects are in the database, and those count: a message may be delivered more often."""
        return self.transactional or self.inbox

    @property
    def is_log(self) -> bool:
        return self.options.get("semantics") == "PUB_SUB"

    @property
    def topic(self) -> str:
        return f"faults.{self.topic_name or self.name}"

    @property
    def entry(self) -> str:
        """Where its messages are published to."""
        return f"{self.topic}.outbox" if self.is_relayed else self.topic

    def subject(self, group: str) -> str:
        """Where a relay sends its messages to, in the stream."""
        return f"faults.{self.name}.{group or 'queue'}"


_RETRY = {"lease": LEASE, "retry_initial": "50ms", "retry_factor": 1.0, "retry_max": "50ms", "max_attempts": 1000}
_LOG = {
    **_RETRY,
    "semantics": "PUB_SUB",
    "lanes": 4,
    # Nobody is to be taken for dead in a run that takes the server away for seconds.
    "heartbeat_interval": "1s",
    "heartbeat_timeout": "120s",
}

MODES = {
    mode.name: mode
    for mode in (
        Mode("queue", _RETRY),
        Mode("ordered", {**_RETRY, "ordered": True}, in_order=True),
        Mode("transactional", _RETRY, transactional=True),
        Mode("inbox", _RETRY, inbox=True),
        # Messages are dropped as soon as both groups are past them.
        Mode(
            "log",
            {**_LOG, "tracking": "OFFSET_WATERMARK", "storage": "own", "retention": "1s"},
            groups=("quick", "slow"),
            in_order=True,
        ),
        Mode(
            "receipts",
            {**_LOG, "tracking": "REFERENCE_COUNTING"},
            groups=("quick", "slow"),
            in_order=True,
            has_receipts=True,
        ),
        Mode("log-transactional", _LOG, groups=("once",), in_order=True, transactional=True),
        Mode("relay", _LOG, groups=("relayed",), in_order=True, is_relayed=True),
        Mode(
            "pull",
            {**_LOG, "tracking": "REFERENCE_COUNTING"},
            groups=("quick", "slow"),
            in_order=True,
            has_receipts=True,
            pulled=True,
        ),
        Mode("pull-transactional", _LOG, groups=("once",), in_order=True, transactional=True, pulled=True),
        # Into one stream, which must tell all of their messages apart.
        Mode("stream-routes", _LOG, groups=("one", "two"), in_order=True, is_streamed=True),
        Mode("stream-queue", _RETRY, is_streamed=True),
        Mode("stream-log", _LOG, groups=("one",), in_order=True, is_streamed=True),
        Mode(
            "stream-there",
            _LOG,
            groups=("one",),
            in_order=True,
            is_streamed=True,
            database="there",
            topic_name="stream-log",
        ),
    )
}

_LATE_SHIFT = ("inbox", "relay", "pull", "pull-transactional")


def shifts(modes: Iterable[Mode]) -> list[list[Mode]]:
    """Modes that work at the same time: all at once are more than two processors can do, and then leases just end."""
    given = list(modes)
    parts = [[one for one in given if (one.name in _LATE_SHIFT) is late] for late in (False, True)]
    return [part for part in parts if part]
