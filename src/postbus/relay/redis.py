"""Redis Streams: the target is a stream, and a batch is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postbus.errors import InvalidOption, SinkUnavailable
from postbus.message import Ack, Outcome, Retry
from postbus.options import Duration, as_timedelta, is_count
from postbus.relay.sink import NotNow, Parcel, check_address, client, one_by_one

_NOT_NOW = ("OOM", "READONLY", "MISCONF", "NOREPLICAS", "BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN")
"""Errors of a server that accepts no writes at the moment."""


class RedisSink:
    """XADD with the fields event_id, payload, content_type, key and the headers.

    A stream does not recognise duplicates: its readers do, by event_id. How safe an acknowledged message is follows
    from the server's appendfsync.
    """

    keeps_order = True
    kind = "redis"

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379/0",
        *,
        max_length: int | None = None,
        timeout: Duration = 10.0,
    ) -> None:
        """The server drops the oldest messages of a stream that is longer than about `max_length`."""
        if max_length is not None and not is_count(max_length):
            raise InvalidOption(f"max_length {max_length!r} is not 1 or more", remedy="give a number, or omit it")
        if not url.startswith("unix://"):
            check_address(url, "redis", "rediss", of="Redis", example="redis://host:6379/0")
        self._redis: Any = client("redis", "redis")
        self._max_length = max_length
        known = self._redis.exceptions
        self._not_now = (known.OutOfMemoryError, known.ReadOnlyError, known.BusyLoadingError, known.TryAgainError,
                         known.MasterDownError, known.ClusterDownError)  # fmt: skip
        timeout_seconds = as_timedelta(timeout, name="timeout").total_seconds()
        asyncio_redis = client("redis.asyncio", "redis")
        no_retry = client("redis.asyncio.retry", "redis").Retry(client("redis.backoff", "redis").NoBackoff(), 0)
        try:
            self._client: Any = asyncio_redis.from_url(
                url, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds, retry=no_retry
            )
        except ValueError as error:
            raise InvalidOption(
                f"the address of Redis is wrong: {error}", remedy="give one such as redis://host:6379/0"
            ) from error

    async def open(self) -> None:
        try:
            await self._client.ping()
        except (self._redis.RedisError, OSError) as error:
            raise SinkUnavailable(f"Redis does not answer: {error}") from error

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        errors = self._redis.exceptions
        # MULTI … EXEC: all of them reach the log from which Redis recovers, or none.
        async with self._client.pipeline(transaction=True) as pipeline:
            for one in parcels:
                pipeline.xadd(one.target, _fields(one), maxlen=self._max_length, approximate=True)
            try:
                answers = await pipeline.execute(raise_on_error=False)
            except (errors.ConnectionError, errors.TimeoutError, OSError) as error:
                raise SinkUnavailable(f"Redis did not take them: {error}") from error
            except errors.ResponseError as error:  # Redis refused a command before EXEC, and with it all of them
                outcome = self._outcome(error)
                if isinstance(outcome, NotNow):
                    return [outcome] * len(parcels)
                return [outcome] if len(parcels) == 1 else await one_by_one(self._send_one, parcels)
        return [self._outcome(one) for one in answers]

    async def _send_one(self, parcel: Parcel) -> Outcome:
        return (await self.send([parcel]))[0]

    def _outcome(self, answer: Any) -> Outcome:
        if not isinstance(answer, Exception):
            return Ack()
        error = f"Redis refused it: {answer}"
        is_for_now = isinstance(answer, self._not_now) or any(code in str(answer).split() for code in _NOT_NOW)
        return NotNow(error) if is_for_now else Retry(error=error)


def _fields(parcel: Parcel) -> dict[str, str | bytes]:
    own: dict[str, str | bytes] = {"payload": parcel.body, "content_type": parcel.content_type}
    if parcel.key is not None:
        own["key"] = parcel.key
    return {**parcel.headers, "event_id": parcel.event_id, **own}
