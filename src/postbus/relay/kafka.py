"""Kafka: the target is a topic, and the key chooses the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from postbus.errors import InvalidOption, SinkUnavailable
from postbus.message import Ack, DeadLetter, Outcome, Release, Retry
from postbus.options import Duration, as_timedelta
from postbus.relay.envelope import CLOUD_EVENTS_PREFIX
from postbus.relay.sink import Parcel, client

_OURS = ("bootstrap.servers", "enable.idempotence", "acks", "message.timeout.ms")
_REFUSED = ("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_MSG", "INVALID_RECORD", "RECORD_LIST_TOO_LARGE")


class KafkaSink:
    """Sends with the idempotent producer and acks=all. The partition follows from the key, as in Java's clients."""

    keeps_order = True
    kind = "kafka"

    def __init__(
        self, url: str = "kafka://127.0.0.1:9092", *, config: Mapping[str, Any] | None = None, timeout: Duration = 30.0
    ) -> None:
        """`url` may name several brokers, separated by commas. `config` has further settings of librdkafka."""
        self._kafka: Any = client("confluent_kafka", "kafka")
        self._timeout = as_timedelta(timeout, name="timeout").total_seconds()
        own = dict(config or {})
        for name in _OURS:
            if name in own:
                raise InvalidOption(f"config has {name!r}, which the sink sets itself", remedy="omit it")
        brokers = url.partition("://")[2].rstrip("/")
        if not brokers:
            raise InvalidOption(f"the address {url!r} names no broker", remedy="give one such as kafka://host:9092")
        self._config = {
            "partitioner": "murmur2_random",
            "linger.ms": 1,
            "log_level": 0,
            "topic.metadata.propagation.max.ms": 10_000,  # the time for which a topic may be unknown
            **own,
            "bootstrap.servers": brokers,
            "enable.idempotence": True,
            "acks": "all",
            # The producer never gives up a message: one that has gone out may arrive, and no later one may overtake it.
            "message.timeout.ms": 0,
        }
        self._producer: Any = None
        try:
            self._kafka.Producer(self._config)
        except self._kafka.KafkaException as error:
            raise InvalidOption(
                f"the configuration of Kafka is wrong: {error.args[0].str()}", remedy="correct the option that it names"
            ) from error

    async def open(self) -> None:
        if self._producer is None:
            self._producer = self._kafka.Producer({**self._config, "error_cb": lambda error: None})
        try:
            await asyncio.to_thread(self._producer.list_topics, timeout=min(self._timeout, 5.0))
        except self._kafka.KafkaException as error:
            raise SinkUnavailable(f"Kafka does not answer: {error.args[0].str()}") from error

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await asyncio.to_thread(_end, producer)

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [Release()] * len(parcels)
        producer = self._producer
        for index, one in enumerate(parcels):
            try:
                producer.produce(
                    one.target,
                    one.body,
                    key=None if one.key is None else one.key.encode(),
                    headers=_headers(one),
                    timestamp=int(one.message.published_at.timestamp() * 1000),
                    on_delivery=lambda error, _, index=index: outcomes.__setitem__(index, self._outcome(error)),
                )
            except self._kafka.KafkaException as error:
                outcomes[index] = self._outcome(error.args[0])
            except BufferError:
                break  # the buffer is full: the rest is sent again later
        if await asyncio.to_thread(producer.flush, self._timeout) > 0:
            await asyncio.to_thread(_end, producer)  # calls on_delivery for the rest
        return outcomes

    def _outcome(self, error: Any) -> Outcome:
        if error is None:
            return Ack()
        reason = f"Kafka refused it: {error.str()}"
        if error.name() in _REFUSED:
            return DeadLetter(reason=reason)
        is_away = error.fatal() or error.retriable() or error.name().startswith("_")
        is_unknown_topic = error.name() == "_UNKNOWN_TOPIC"
        return Release() if is_away and not is_unknown_topic else Retry(error=reason)


def _headers(parcel: Parcel) -> list[tuple[str, bytes]]:
    """The headers, with the names of the Kafka binding of CloudEvents."""
    named = [
        (
            f"ce_{name.removeprefix(CLOUD_EVENTS_PREFIX)}" if name.startswith(CLOUD_EVENTS_PREFIX) else name,
            value.encode(),
        )
        for name, value in parcel.headers.items()
    ]
    return [*named, ("content-type", parcel.content_type.encode())]


def _end(producer: Any) -> None:
    """Drop what is not delivered: another producer sends it again."""
    producer.purge()
    producer.flush(1.0)
