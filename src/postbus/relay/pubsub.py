"""Google Pub/Sub: the target is a topic, and a message's key is its ordering key."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from postbus.errors import InvalidOption, SinkUnavailable
from postbus.message import Ack, DeadLetter, Outcome, Release, Retry
from postbus.options import Duration, as_timedelta
from postbus.relay.sink import NotNow, Parcel, client

_FINAL = (DeadLetter, Release)  # outcomes of messages that were not sent
_RESERVED = ("topic", "data", "ordering_key", "retry", "timeout")  # the client's own parameters


class PubSubSink:
    """Publishes with the headers as attributes. Subscriptions with ordering enabled get messages of a key in order."""

    keeps_order = True
    kind = "pubsub"

    def __init__(self, url: str, *, emulator: str | None = None, timeout: Duration = 30.0) -> None:
        """`url` is pubsub://PROJECT. `emulator` is the host and port of an emulator (PUBSUB_EMULATOR_HOST)."""
        self._project = url.partition("://")[2].strip("/")
        if not self._project:
            raise InvalidOption(f"the address {url!r} names no project", remedy="give one such as pubsub://my-project")
        self._pubsub: Any = client("google.cloud.pubsub_v1", "pubsub")
        self._grpc: Any = client("grpc", "pubsub")
        self._errors: Any = client("google.api_core.exceptions", "pubsub")
        self._retry: Any = client("google.api_core.retry", "pubsub")
        self._emulator = emulator or os.environ.get("PUBSUB_EMULATOR_HOST")
        self._timeout = as_timedelta(timeout, name="timeout").total_seconds()
        self._client: Any = None

    async def open(self) -> None:
        if self._client is None:
            self._client = await asyncio.to_thread(self._connected)
        ready = self._grpc.channel_ready_future(self._client.transport.grpc_channel)
        try:
            await asyncio.to_thread(ready.result, min(self._timeout, 5.0))
        except self._grpc.FutureTimeoutError as error:
            ready.cancel()
            raise SinkUnavailable("Pub/Sub does not answer") from error

    def _connected(self) -> Any:
        types = self._pubsub.types
        retry = self._retry.Retry(initial=0.1, maximum=2.0, timeout=self._timeout)
        options = types.PublisherOptions(enable_message_ordering=True, retry=retry, timeout=self._timeout)
        batches = types.BatchSettings(max_latency=0.005, max_messages=1000)
        given: dict[str, Any] = {}
        if self._emulator is not None:
            transport = client("google.pubsub_v1.services.publisher.transports", "pubsub").PublisherGrpcTransport
            given["transport"] = transport(channel=self._grpc.insecure_channel(self._emulator))
        try:
            return self._pubsub.PublisherClient(batches, options, **given)
        except client("google.auth.exceptions", "pubsub").DefaultCredentialsError as error:
            raise InvalidOption(f"Pub/Sub: {error}", remedy="set GOOGLE_APPLICATION_CREDENTIALS") from error

    async def close(self) -> None:
        publisher, self._client = self._client, None
        if publisher is not None:
            await asyncio.to_thread(publisher.stop)
            publisher.transport.close()

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        publisher = self._client  # another call may close it meanwhile
        answers = [self._publish(publisher, one) for one in parcels]
        waiting = [asyncio.wrap_future(one) for one in answers if not isinstance(one, _FINAL)]
        results = iter(await asyncio.gather(*waiting, return_exceptions=True))
        outcomes = [one if isinstance(one, _FINAL) else self._outcome(next(results)) for one in answers]
        for one, outcome in zip(parcels, outcomes, strict=True):
            if one.key and not isinstance(outcome, Ack):  # the client holds back the messages behind it
                with suppress(RuntimeError):  # the client was closed
                    publisher.resume_publish(self._topic(one), one.key)
        return outcomes

    def _topic(self, parcel: Parcel) -> str:
        return f"projects/{self._project}/topics/{parcel.target}"

    def _publish(self, publisher: Any, parcel: Parcel) -> Any:
        attributes = {  # Pub/Sub refuses empty ones
            f"header_{name}" if name in _RESERVED else name: value for name, value in parcel.headers.items() if value
        }
        attributes |= {"event_id": parcel.event_id, "content_type": parcel.content_type}
        try:
            return publisher.publish(self._topic(parcel), parcel.body, parcel.key or "", **attributes)
        except (ValueError, TypeError, self._pubsub.publisher.exceptions.MessageTooLargeError) as error:
            return DeadLetter(reason=f"it cannot be sent to Pub/Sub: {error}")
        except RuntimeError:  # the client was closed
            return Release()

    def _outcome(self, result: Any) -> Outcome:
        errors = self._errors
        if not isinstance(result, BaseException):
            return Ack()
        if isinstance(result, errors.InvalidArgument):
            return DeadLetter(reason=f"Pub/Sub refused it: {result}")
        is_away = (errors.ServerError, errors.RetryError, errors.TooManyRequests, TimeoutError)
        paused = self._pubsub.publisher.exceptions.PublishToPausedOrderingKeyException
        if isinstance(result, is_away):
            return NotNow(f"Pub/Sub does not take it: {result}")
        if isinstance(result, (paused, asyncio.CancelledError)):
            return Release()
        return Retry(error=f"Pub/Sub refused it: {result}")
