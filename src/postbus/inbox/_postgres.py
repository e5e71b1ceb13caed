"""The inbox in PostgreSQL, which records messages in the transactions that handle them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Generic, TypeVar

from postbus._drivers.base import translate_from
from postbus._drivers.known import driver_of
from postbus.errors import InvalidInput, InvalidOption
from postbus.inbox._idempotent import idempotent
from postbus.inbox._names import WINDOW, MessageId, as_text, as_window, checked_consumer
from postbus.options import Duration

A = TypeVar("A")
H = TypeVar("H", bound=Callable[..., Any])

_ONCE = "select postbus.inbox_once_many($1::pg_catalog.text, $2::pg_catalog.text[], $3::interval)"
_FORGET = (
    "select pg_catalog.bool_or(postbus.inbox_forget($1::pg_catalog.text, one.id)) "
    "from pg_catalog.unnest($2::pg_catalog.text[]) as one (id)"
)


class Inbox:
    """Remembers in PostgreSQL which messages a consumer has handled.

    It remembers each for `window`. A copy that is delivered later has its effect again.
    """

    def __init__(self, *, window: Duration = WINDOW) -> None:
        self._window = as_window(window, name="window", least=timedelta(seconds=1))

    def once(self, conn: Any, consumer: str, message_id: MessageId) -> Once[bool]:
        """Whether this consumer has the message for the first time, as `async with … as first:`.

        The message is recorded in the transaction of `conn`, so the record and the effect commit together or not at
        all. While another transaction has the same message in hand, this waits. An error that leaves the block removes
        the record, even if the caller goes on with the transaction. With a sync connection: `with … as first:`.
        """
        return Once(conn, checked_consumer(consumer), [as_text(message_id)], self._window, shape=all)

    def once_many(self, conn: Any, consumer: str, message_ids: Iterable[MessageId]) -> Once[list[bool]]:
        """The same for a batch in one round trip: a list with an answer for each message, in their order.

        The messages are locked in the order of their ids, so that two processes with common messages do not deadlock.
        """
        if isinstance(message_ids, str):
            raise InvalidOption(f"{message_ids!r:.200} is one id", remedy="give a list, or use inbox.once()")
        given = [as_text(one) for one in message_ids]
        return Once(conn, checked_consumer(consumer), given, self._window, shape=list)

    def forget(self, conn: Any, consumer: str, message_id: MessageId) -> Any:
        """Let the next delivery of a message have its effect again, in the transaction of `conn`.

        Returns whether the message was known; on an async connection, an awaitable of that.
        """
        return _run(conn, _FORGET, checked_consumer(consumer), [as_text(message_id)])

    def idempotent(
        self,
        consumer: str,
        *,
        transaction: Callable[[], Any] | None = None,
        message_id: Callable[[Any], MessageId] | None = None,
    ) -> Callable[[H], H]:
        """Make a handler idempotent: it is called once for each message, however often the message is delivered.

        The message is recorded in the transaction of the handler's parameter `conn`, which a transactional handler gets
        from the bus. Other handlers get one from `transaction`, such as `bus.transaction`. Messages are known by their
        `event_id`, or by `message_id`, such as `lambda message: message.headers["payment-id"]`.
        """
        checked_consumer(consumer)

        def once(message: Any, conn: Any) -> Once[bool]:
            return self.once(conn, consumer, message if message_id is None else message_id(message))

        return idempotent(once, in_database=True, transaction=transaction)


class Once(Generic[A]):
    """Messages of one consumer, in a transaction of the caller."""

    def __init__(
        self, conn: Any, consumer: str, message_ids: list[str], window: timedelta, *, shape: Callable[[list[bool]], A]
    ) -> None:
        self._conn = conn
        self._consumer = consumer
        self._ids = message_ids
        self._window = window
        self._shape = shape
        self._driver = driver_of(conn)
        self._new: list[str] = []

    def __enter__(self) -> A:
        self._check_kind(is_async=False)
        first = self._recorded(_run(self._conn, _ONCE, self._consumer, self._ids, self._window))
        if self._new and self._driver.has_committed(self._conn):
            _run(self._conn, _FORGET, self._consumer, self._new)
            raise _no_transaction()
        return first

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._new:
            with suppress(Exception):  # in a transaction that has failed, the records are gone already
                _run(self._conn, _FORGET, self._consumer, self._new)

    async def __aenter__(self) -> A:
        self._check_kind(is_async=True)
        first = self._recorded(await _run(self._conn, _ONCE, self._consumer, self._ids, self._window))
        if self._new and self._driver.has_committed(self._conn):
            await _run(self._conn, _FORGET, self._consumer, self._new)
            raise _no_transaction()
        return first

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._new:
            with suppress(Exception):  # as above
                await _run(self._conn, _FORGET, self._consumer, self._new)

    def _recorded(self, first: list[bool]) -> A:
        self._new = [one for one, is_first in zip(self._ids, first, strict=True) if is_first]
        return self._shape(first)

    def _check_kind(self, *, is_async: bool) -> None:
        if self._driver.is_async != is_async:
            raise InvalidInput(
                f"the connection is {'async' if self._driver.is_async else 'not async'}",
                remedy=f"use `{'async with' if self._driver.is_async else 'with'} inbox.once(…) as first:`",
            )


def _run(conn: Any, sql: str, *args: Any) -> Any:
    """Run a statement. Returns its value, or an awaitable of it."""
    driver = driver_of(conn)
    if driver.is_async:
        return _run_async(conn, sql, args)
    try:
        return driver.run(conn, sql, args)
    except Exception as error:
        raise translate_from(error) from error.__cause__


async def _run_async(conn: Any, sql: str, args: tuple[Any, ...]) -> Any:
    try:
        return await driver_of(conn).run(conn, sql, args)
    except Exception as error:
        raise translate_from(error) from error.__cause__


def _no_transaction() -> InvalidInput:
    return InvalidInput(
        "the connection is in no transaction, so the effect and its record cannot commit together",
        remedy="begin a transaction around inbox.once(…) and the effect, or turn autocommit off",
    )
