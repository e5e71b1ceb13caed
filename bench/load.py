"""The messages of a run: JSON of 200 bytes with random content."""

from __future__ import annotations

import base64
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from bench.plan import BATCH
from postbus import Bus

PAYLOAD_BYTES = 200

Payload = dict[str, Any]


class Order(msgspec.Struct):
    """A payload as a handler receives it."""

    number: int
    customer: str
    cents: int
    note: str
    sent_at: int = 0
    """The clock of the latency measurement, in nanoseconds."""


def payloads(count: int, *, seed: int = 1, size: int = PAYLOAD_BYTES) -> list[Payload]:
    """Payloads whose JSON has `size` bytes each, at least 100."""
    rng = random.Random(seed)
    return [payload(rng, number, size=size) for number in range(count)]


def payload(rng: random.Random, number: int, *, size: int = PAYLOAD_BYTES) -> Payload:
    """One payload: the fields of an order, filled up with random text."""
    made = {"number": number, "customer": _text(rng, 16), "cents": rng.randrange(10**6), "note": ""}
    made["note"] = _text(rng, size - len(msgspec.json.encode(made)))
    return made


def _text(rng: random.Random, length: int) -> str:
    return base64.urlsafe_b64encode(rng.randbytes(length)).decode("ascii")[:length]


def encode(given: Payload) -> bytes:
    """The JSON of a payload."""
    return msgspec.json.encode(given)


def entropy(given: Sequence[Payload]) -> float:
    """Shannon's entropy of the payloads' bytes, in bits per byte."""
    counts = Counter(b"".join(map(encode, given)))
    return -sum(n / counts.total() * math.log2(n / counts.total()) for n in counts.values())


def batches(given: Sequence[Payload], count: int) -> list[Sequence[Payload]]:
    """`count` payloads in batches of BATCH; the given ones are repeated."""
    wanted = [given[start : start + BATCH] for start in range(0, len(given), BATCH)]
    repeated = [wanted[number % len(wanted)] for number in range(math.ceil(count / BATCH))]
    return [*repeated[:-1], repeated[-1][: count - sum(map(len, repeated[:-1]))]]


async def fill(bus: Bus, conn: asyncpg.Connection, topic: str, given: Sequence[Payload], count: int) -> None:
    """Publish `count` messages, in a transaction for each BATCH."""
    for batch in batches(given, count):
        async with conn.transaction():
            await bus.publish_many(conn, topic, batch)
