"""The files that producers, handlers and the driver write, so that a judgement needs nothing from the database.

Times are CLOCK_MONOTONIC, which all processes of a machine share. A record is on its way to the disk with one write,
before the process goes on: who is killed afterwards has written it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec


class Record(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One line of a file."""


class PublishAttempt(Record, frozen=True):
    """A message is about to be published, in a transaction that has a name."""

    mode: str
    key: str
    n: int
    transaction: str
    is_poison: bool = False


class TransactionCommitted(Record, frozen=True):
    """The transaction's COMMIT was answered."""

    transaction: str


class TransactionFailed(Record, frozen=True):
    """The transaction was rolled back, or no COMMIT was ever sent."""

    transaction: str


class Handling(Record, frozen=True):
    """A moment in the handling of a message."""

    mode: str
    group: str
    key: str
    n: int
    pid: int
    at: int


class HandlerBegan(Handling, frozen=True):
    """A handler begins."""

    message_id: int = 0
    attempt: int = 0


class HandlerEnded(Handling, frozen=True):
    """A handler has had its effect."""


class SettlementAccepted(Record, frozen=True):
    """The database has accepted a settlement: of a message of a queue, or of a place in a group's ledger."""

    mode: str
    what: str
    pid: int
    by: str


class Disruption(Record, frozen=True):
    """Something was done to server, network or processes."""

    fault: str
    since: int
    until: int
    excuses: bool
    """Whether messages that were in hand meanwhile may come twice."""


AnyRecord = (
    PublishAttempt
    | TransactionCommitted
    | TransactionFailed
    | HandlerBegan
    | HandlerEnded
    | SettlementAccepted
    | Disruption
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyRecord).decode


def now() -> int:
    """The time of records."""
    return time.monotonic_ns()


class Journal:
    """The file of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, *records: AnyRecord) -> None:
        os.write(self._file, b"".join(_encode(one) + b"\n" for one in records))

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(folder: Path) -> list[AnyRecord]:
    """All that was written, file by file. A last line that was cut off is left out."""
    return [_decode(line) for path in sorted(folder.glob("*.journal")) for line in path.read_bytes().split(b"\n")[:-1]]
