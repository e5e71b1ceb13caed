"""A bus over HTTP: the calls of `Bus` through a server of Postbus, for programs that cannot reach the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self, Unpack

from postbus._content.outgoing import outgoing
from postbus.errors import InvalidOption
from postbus.http_client.admin import HttpAdmin
from postbus.http_client.pull import HttpPuller, HttpTransaction
from postbus.http_client.send import HttpSender
from postbus.http_client.wire import Wire
from postbus.message import PublishOptions
from postbus.options import Duration, as_timedelta
from postbus.pull import Delivery, Pop, PopOptions, Popped, pop
from postbus.scope import Heartbeat, Scope

__all__ = ["Delivery", "HttpBus", "HttpTransaction", "Popped"]


class HttpBus:
    """Sends to and pops from a server of Postbus. Needs httpx: pip install 'postbus[client]'.

    Concurrent calls of `send` share requests. While `max_pending` messages, or messages of `max_pending_bytes`, are
    unanswered, further calls wait, so memory is bounded.

    A failed request is repeated for up to `patience` seconds. Each message without a deduplication key gets one, so
    that repeating publishes it once. With `dedup=False` it gets none, and a request of unknown outcome raises
    CommitUnknown.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        dedup: bool = True,
        patience: Duration = 30.0,
        timeout: Duration = 30.0,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64 << 20,
    ) -> None:
        self._wire = Wire(
            url,
            token=token,
            patience=as_timedelta(patience, name="patience").total_seconds(),
            timeout=as_timedelta(timeout, name="timeout").total_seconds(),
        )
        self._sender = HttpSender(self._wire, dedup=dedup, most=max_pending, most_bytes=max_pending_bytes)
        self._puller = HttpPuller(self._wire)
        self.admin = HttpAdmin(self._wire)

    # publishing

    async def send(self, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> int:
        """Publish a message. Returns its id once it is committed."""
        return await self._sender.send(topic, outgoing(payload, **options))

    async def send_many(self, topic: str, messages: Iterable[Any]) -> list[int]:
        """Publish payloads, or `Outgoing` messages: all of them are committed, or none is. Returns their ids."""
        return await self._sender.send_many(topic, messages)

    async def publish(self, tx: HttpTransaction, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> None:
        """Publish a message if and only if the transaction commits. Its id is in `tx.ids` then."""
        tx.publish(topic, [outgoing(payload, **options)])

    async def publish_many(self, tx: HttpTransaction, topic: str, messages: Iterable[Any]) -> None:
        """The same for payloads, or `Outgoing` messages."""
        tx.publish(topic, messages)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[HttpTransaction]:
        """Acknowledge and publish together, also across topics, by one request at the end of the block.

        Nothing is sent if the block raises. If another consumer has one of the messages by then, the whole
        transaction fails with LeaseLost.
        """
        with self._puller.settler.noting() as note:
            tx = HttpTransaction(self._wire)
            note(tx)
            yield tx
            await tx.commit()

    # consuming

    def pop(self, topic: str | None = None, **options: Unpack[PopOptions]) -> Pop:
        """Take messages, with the options of `Bus.pop` except `member`: the server knows the consumer by its token."""
        if "member" in options:
            raise InvalidOption("over HTTP the token names the consumer", remedy="omit member")
        return pop(self._connected_puller, topic, options)

    async def heartbeat(
        self,
        topic: str | None = None,
        *,
        group: str,
        namespace: str | None = None,
        task: str | None = None,
        last: bool = False,
    ) -> list[Heartbeat]:
        """Keep a group alive whose consumer will not pop, settle or extend for a while. Revives a DEAD group.

        With `last`, this consumer stops as planned: its group is shown as stopped until its next sign of life.
        `close()` does this automatically for groups that this bus has popped for.
        """
        return await self._puller.heartbeat(Scope.of(topic, namespace=namespace, task=task), group, last=last)

    async def _connected_puller(self) -> HttpPuller:
        return self._puller

    async def close(self) -> None:
        """Finish pending sends and settlements, and disconnect."""
        await self._sender.close()
        await self._puller.close()
        await self._puller.report_stopped()
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
