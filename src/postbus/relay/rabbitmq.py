"""RabbitMQ: the target is a routing key or, without an exchange, the name of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from postbus.errors import InvalidOption, SinkUnavailable
from postbus.message import Ack, DeadLetter, Outcome, Release, Retry
from postbus.options import Duration, as_timedelta
from postbus.relay.envelope import CLOUD_EVENTS_PREFIX
from postbus.relay.sink import NotNow, Parcel, check_address, client

_SHORT = 255  # bytes of a short string of AMQP


class RabbitSink:
    """Publishes persistent messages with confirms; one that no queue gets is an error.

    The parcel's id is its message_id: RabbitMQ does not recognise duplicates, its consumers do, by that or by event_id.
    """

    keeps_order = False
    kind = "rabbitmq"

    def __init__(
        self, url: str = "amqp://guest:guest@127.0.0.1/", *, exchange: str = "", timeout: Duration = 10.0
    ) -> None:
        """`exchange` must exist. Without one, messages go to the queue that their target names."""
        if not isinstance(exchange, str):
            raise InvalidOption(f"exchange {exchange!r} is not a name", remedy="give the name of an exchange")
        check_address(url, "amqp", "amqps", of="RabbitMQ", example="amqp://host/")
        self._pika: Any = client("aio_pika", "rabbitmq")
        self._url = url
        self._exchange_name = exchange
        self._timeout = as_timedelta(timeout, name="timeout").total_seconds()
        self._connection: Any = None
        self._exchange: Any = None

    async def open(self) -> None:
        await self.close()
        errors = self._pika.exceptions
        try:
            self._connection = await self._pika.connect(self._url, timeout=self._timeout)
            channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
            self._exchange = channel.default_exchange
            if self._exchange_name:
                self._exchange = await channel.get_exchange(self._exchange_name)
        except errors.ChannelNotFoundEntity as error:
            await self.close()
            raise SinkUnavailable(f"there is no exchange {self._exchange_name!r}", remedy="declare it") from error
        except (errors.AMQPError, OSError) as error:
            raise SinkUnavailable(f"RabbitMQ does not answer: {type(error).__name__}: {error}") from error
        except (ValueError, KeyError) as error:
            raise InvalidOption(
                f"the address of RabbitMQ is wrong: {error}", remedy="give one such as amqp://host/"
            ) from error

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed:
            await connection.close()

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        return await asyncio.gather(*map(self._publish, parcels))

    async def _publish(self, parcel: Parcel) -> Outcome:
        errors = self._pika.exceptions
        try:
            await self._exchange.publish(self._message(parcel), parcel.target, mandatory=True, timeout=self._timeout)
        except errors.PublishError as error:
            return Retry(error=f"no queue got it: {error}")
        except errors.DeliveryError as error:  # a queue that is full, or a server in trouble
            return NotNow(f"RabbitMQ refused it: {error}")
        except (errors.AMQPError, errors.ChannelInvalidStateError, OSError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_ours(asyncio.current_task()):
                raise
            return Release()
        except (ValueError, TypeError) as error:  # longer than AMQP allows
            return DeadLetter(reason=f"it cannot be written as AMQP: {error}")
        return Ack()

    def _message(self, parcel: Parcel) -> Any:
        message = parcel.message
        headers = {  # with the names of the AMQP binding of CloudEvents
            f"cloudEvents_{name.removeprefix(CLOUD_EVENTS_PREFIX)}"
            if name.startswith(CLOUD_EVENTS_PREFIX)
            else name: value
            for name, value in parcel.headers.items()
        }
        if parcel.key is not None:
            headers["key"] = parcel.key
        return self._pika.Message(
            parcel.body,
            headers=headers,
            content_type=parcel.content_type,
            message_id=parcel.id,
            correlation_id=_short(message.correlation_id),
            timestamp=message.published_at,
            type=_short(parcel.headers.get("event_type")),
            delivery_mode=self._pika.DeliveryMode.PERSISTENT,
        )


def _short(text: str | None) -> str | None:
    """A text of at most 255 bytes, the limit of AMQP, or None. The headers have it in any length."""
    return text if text is None or len(text.encode()) <= _SHORT else None


def _is_ours(task: asyncio.Task[Any] | None) -> bool:
    """Whether this task is cancelled, and not only the answer that it awaits."""
    return task is not None and task.cancelling() > 0
