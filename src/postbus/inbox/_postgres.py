"""The inbox in PostgreSQL: what is done is noted in the transaction that does it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from postbus._drivers import driver_of, translate_from
from postbus.errors import InvalidInput
from postbus.inbox._idempotent import idempotent
from postbus.inbox._names import WINDOW, MessageId, as_text, as_window, checked_consumer
from postbus.options import Duration

H = TypeVar("H", bound=Callable[..., Any])

_ONCE = "select postbus.inbox_once($1::text, $2::text, $3::interval)"
_FORGET = "select postbus.inbox_forget($1::text, $2::text)"


class Inbox:
    """Remembers, in PostgreSQL, which messages a consumer is done with.

    `window` is for how long. A copy of a message that is delivered later has its effect again.
    """

    def __init__(self, *, window: Duration = WINDOW) -> None:
        self._window = as_window(window, name="window", least=timedelta(seconds=1))

    def once(self, conn: Any, consumer: str, message_id: MessageId) -> Once:
        """Whether this consumer has the message for the first time, as `async with … as first:`.

        That is noted in the transaction of `conn`, so that it commits together with the effect, or neither does.
        Waits while another transaction has the same message in hand. An error that leaves the block takes the
        note back, also if the caller goes on with the transaction. With a sync connection: `with … as first:`.
        """
        return Once(conn, checked_consumer(consumer), as_text(message_id), self._window)

    def forget(self, conn: Any, consumer: str, message_id: MessageId) -> Any:
        """Let the next delivery of a message have its effect again. Returns whether the message was known.

        In the transaction of `conn`; on an async connection, an awaitable.
        """
        return _run(conn, _FORGET, checked_consumer(consumer), as_text(message_id))

    def idempotent(
        self,
        consumer: str,
        *,
        transaction: Callable[[], Any] | None = None,
        message_id: Callable[[Any], MessageId] | None = None,
    ) -> Callable[[H], H]:
        """Make a handler idempotent: it is called once for each message, however often that is delivered.

        The note goes to the transaction of the handler's parameter `conn`, which a transactional handler gets from
        the bus. Others get one of `transaction`, such as `bus.transaction`. `message_id` tells what the message is
        known by, if not by its id; such as `lambda message: message.headers["event-id"]`.
        """
        checked_consumer(consumer)

        def once(message: Any, conn: Any) -> Once:
            return self.once(conn, consumer, message if message_id is None else message_id(message))

        return idempotent(once, transaction=transaction, needs_connection=True)


class Once:
    """One message of one consumer, in a transaction of the caller."""

    def __init__(self, conn: Any, consumer: str, message_id: str, window: timedelta) -> None:
        self._conn = conn
        self._args = consumer, message_id
        self._window = window
        self._driver = driver_of(conn)
        self._is_first = False

    def __enter__(self) -> bool:
        self._check_kind(is_async=False)
        self._is_first = _run(self._conn, _ONCE, *self._args, self._window)
        if self._is_first and self._driver.has_committed(self._conn):
            _run(self._conn, _FORGET, *self._args)
            raise _no_transaction()
        return self._is_first

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._is_first:
            with suppress(Exception):  # where the transaction has failed, the note is gone with it
                _run(self._conn, _FORGET, *self._args)

    async def __aenter__(self) -> bool:
        self._check_kind(is_async=True)
        self._is_first = await _run(self._conn, _ONCE, *self._args, self._window)
        if self._is_first and self._driver.has_committed(self._conn):
            await _run(self._conn, _FORGET, *self._args)
            raise _no_transaction()
        return self._is_first

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._is_first:
            with suppress(Exception):  # as above
                await _run(self._conn, _FORGET, *self._args)

    def _check_kind(self, *, is_async: bool) -> None:
        if self._driver.is_async != is_async:
            raise InvalidInput(
                f"the connection is {'async' if self._driver.is_async else 'not async'}",
                remedy=f"use `{'async with' if self._driver.is_async else 'with'} inbox.once(…) as first:`",
            )


def _run(conn: Any, sql: str, *args: Any) -> Any:
    """The statement's answer, or an awaitable of it."""
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
        "the connection is in no transaction, so the effect and its note cannot commit together",
        remedy="begin a transaction around inbox.once(…) and the effect, or turn autocommit off",
    )
