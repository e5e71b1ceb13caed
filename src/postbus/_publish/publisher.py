"""Publishing in the caller's transaction or in one of the bus, and waking the consumers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from postbus._db.store import Store
from postbus._drivers.base import Driver, translate_from
from postbus._drivers.known import driver_of
from postbus._drivers.statement import Published, Statement, published
from postbus._publish.group_commit import Sender
from postbus._publish.statements import publish_many, publish_one
from postbus._wakeup.notifier import Notifier, ThreadNotifier, is_in_loop
from postbus._wakeup.waiters import Wakers
from postbus.errors import InvalidInput
from postbus.message import Outgoing
from postbus.middleware import Middleware, publishing

T = TypeVar("T")


class Publisher:
    """Publishes all messages of a bus. Only sending needs a connection of the bus."""

    def __init__(self, dsn: str, wakers: Wakers, middleware: Sequence[Middleware]) -> None:
        self._middleware = middleware
        self._wakers = wakers
        self._thread_notifier = ThreadNotifier(dsn)
        self._store: Store | None = None
        self._notifier: Notifier | None = None
        self._sender: Sender | None = None

    def connected(self, store: Store) -> None:
        """Use the connections of the bus from now on, to send messages and wake-ups."""
        self._store = store
        self._notifier = Notifier(store, self._wakers)
        self._sender = Sender(store, self._notifier.notify)

    # in the caller's transaction

    def publish(self, conn: Any, topic: str, message: Outgoing) -> int | Awaitable[int]:
        """Publish one message. Returns its id, or for an async connection an awaitable of it."""
        return self._publish(conn, topic, [message], lambda given: publish_one(topic, _only(given)), _only)

    def publish_many(self, conn: Any, topic: str, messages: Iterable[Any]) -> list[int] | Awaitable[list[int]]:
        """Publish many messages. Returns their ids, or for an async connection an awaitable of them."""
        given = self._many(messages)
        return self._publish(conn, topic, given, lambda given: publish_many(topic, given), list)

    def _publish(
        self,
        conn: Any,
        topic: str,
        messages: list[Outgoing],
        statement: Callable[[Sequence[Outgoing]], Statement],
        result: Callable[[list[int]], T],
    ) -> T | Awaitable[T]:
        driver = driver_of(conn)
        if driver.is_async:
            return self._publish_async(driver, conn, topic, messages, statement, result)
        with publishing(self._middleware, topic, messages) as given:
            try:
                answer = published(driver.run(conn, *statement(given)))
            except Exception as error:
                raise translate_from(error) from error.__cause__
        self._notify_when_ended(driver, conn, topic, answer)
        return result(answer.ids)

    async def _publish_async(
        self,
        driver: Driver,
        conn: Any,
        topic: str,
        messages: list[Outgoing],
        statement: Callable[[Sequence[Outgoing]], Statement],
        result: Callable[[list[int]], T],
    ) -> T:
        with publishing(self._middleware, topic, messages) as given:
            try:
                answer = published(await driver.run(conn, *statement(given)))
            except Exception as error:
                raise translate_from(error) from error.__cause__
        self._notify_when_ended(driver, conn, topic, answer)
        return result(answer.ids)

    def _many(self, messages: Iterable[Any]) -> list[Any]:
        if isinstance(messages, str | bytes | Mapping):
            raise InvalidInput(f"publish_many got one {type(messages).__name__}", remedy="give a list, or use publish")
        if self._middleware:  # middleware sees all messages in one form
            return [one if isinstance(one, Outgoing) else Outgoing(payload=one) for one in messages]
        return list(messages)

    def _notify_when_ended(self, driver: Driver, conn: Any, topic: str, answer: Published) -> None:
        if not answer.commit_notifies or self._wakers.has(topic):
            driver.when_ended(conn, lambda: self.notify(topic, commit_notified=answer.commit_notifies))

    # in a transaction of the bus

    async def send(self, topic: str, message: Outgoing) -> int:
        """Publish one message. Returns its id once it is committed."""
        assert self._sender is not None
        with publishing(self._middleware, topic, [message]) as changed:
            given = _only(changed)
            publish_one(topic, given)  # refuse a bad message here: in a shared commit it would fail others
            return await self._sender.send(topic, given)

    async def send_many(self, topic: str, messages: Iterable[Any]) -> list[int]:
        """Publish many messages, all or none. Returns their ids once they are committed."""
        assert self._store is not None
        with publishing(self._middleware, topic, self._many(messages)) as given:
            [answer] = await self._store.publish_batches([publish_many(topic, given)])
        self.notify(topic, commit_notified=answer.commit_notifies)
        return answer.ids

    # waking

    def notify(self, topic: str, *, commit_notified: bool = False) -> None:
        """Wake the consumers of a topic; only those of this process if the commit has notified all others."""
        if self._notifier is not None and is_in_loop():
            self._notifier.notify(topic, commit_notified=commit_notified)
        elif not commit_notified:
            self._thread_notifier.notify(topic)

    async def close(self) -> None:
        """Finish pending sends, and send their wake-ups."""
        if self._sender is not None:
            await self._sender.close()
        if self._notifier is not None:
            await self._notifier.close()
        self._store = self._sender = self._notifier = None

    def close_threads(self) -> None:
        """Send the wake-ups for what threads have published, and end the thread that does so."""
        self._thread_notifier.close()


def _only(messages: Sequence[T]) -> T:
    if len(messages) != 1:
        raise InvalidInput(f"a middleware made {len(messages)} messages of one", remedy="yield as many as were given")
    return messages[0]
