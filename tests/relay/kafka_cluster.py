"""A Kafka cluster for tests: librdkafka's own mock, which runs in this process and listens on real ports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer


@contextmanager
def kafka_cluster() -> Iterator[str]:
    """Return the address of a cluster with one broker."""
    holder = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    try:
        brokers = holder.list_topics(timeout=10).brokers.values()
        yield "kafka://" + ",".join(f"{one.host}:{one.port}" for one in brokers)
    finally:
        holder.flush(1)


def records(address: str, topic: str, count: int) -> list[Any]:
    """Read at least this many records of a topic, and those that come in the moment after."""
    consumer = Consumer(
        {"bootstrap.servers": address.partition("://")[2], "group.id": "tests", "auto.offset.reset": "earliest",
         "log_level": 0}
    )  # fmt: skip
    consumer.subscribe([topic])
    got: list[Any] = []
    try:
        until = time.monotonic() + 20
        while (found := consumer.consume(500, timeout=1.0)) or (len(got) < count and time.monotonic() < until):
            got += [one for one in found if one.error() is None]
            until = time.monotonic() + 20 if found else until
    finally:
        consumer.close()
    return got
