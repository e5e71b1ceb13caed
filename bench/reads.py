"""The durations of a process's reads of the log."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Read(NamedTuple):
    at: float
    """When it had ended, by time.monotonic(), which all processes of a machine share."""
    seconds: float


@contextlib.contextmanager
def read_times(topic: str) -> Iterator[list[Read]]:
    """The reads of this process that find messages in a topic, taken from their log events."""
    reads: list[Read] = []

    def note(record: logging.LogRecord) -> bool:
        if getattr(record, "event", None) == "log.read" and vars(record)["fields"]["topic"] == topic:
            reads.append(Read(time.monotonic(), vars(record)["fields"]["seconds"]))
        return record.levelno >= logging.WARNING

    logger = logging.getLogger("postbus")
    logger.setLevel(logging.DEBUG)
    logger.addFilter(note)
    try:
        yield reads
    finally:
        logger.removeFilter(note)
        logger.setLevel(logging.NOTSET)


def percentile_ms(seconds: Sequence[float], part: float) -> float:
    """The percentile of the durations in milliseconds; 0 if there are none."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0
