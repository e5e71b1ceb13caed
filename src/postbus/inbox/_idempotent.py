"""Idempotent handlers, which are called once for each message however often it is delivered."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from postbus.errors import InvalidHandler, MessageInHand
from postbus.message import Ack, Message, Retry
from postbus.subscription import hints_of, is_async, is_message, parameters_of

H = TypeVar("H", bound=Callable[..., Any])

Open = Callable[[Any, Any], Any]
"""Makes, for a message and a connection, the block that says whether the message is new."""


def idempotent(once: Open, *, in_database: bool, transaction: Callable[[], Any] | None = None) -> Callable[[H], H]:
    """Put the block of an inbox around a handler, in a transaction of its own if one is given."""

    def decorate(handler: H) -> H:
        call = _Call(handler, transaction)
        if call.connection is not None and not in_database:
            raise InvalidHandler(
                f"the effects of {call.name} on its connection would commit after its message is marked as done",
                remedy="use Inbox(), whose record commits together with the effect",
            )
        if in_database and transaction is None and call.connection is None:
            raise InvalidHandler(
                f"{call.name} has no connection in which to record that a message is done",
                remedy="give it a parameter conn and subscribe it with transactional=True, "
                "or use idempotent(…, transaction=bus.transaction)",
            )

        @functools.wraps(handler)
        async def handle(payload: Any, **named: Any) -> Any:
            message, given = call.split(payload, named)
            try:
                async with call.opened(named) as conn, once(message, conn) as first:
                    return call.done(await handler(payload, **given(conn))) if first else None
            except _Undone as undone:
                return undone.outcome
            except MessageInHand as busy:
                return Retry(delay=busy.retry_after, error=str(busy))

        @functools.wraps(handler)
        def handle_in_thread(payload: Any, **named: Any) -> Any:
            message, given = call.split(payload, named)
            try:
                with call.opened(named) as conn, once(message, conn) as first:
                    return call.done(handler(payload, **given(conn))) if first else None
            except _Undone as undone:
                return undone.outcome
            except MessageInHand as busy:
                return Retry(delay=busy.retry_after, error=str(busy))

        wrapper: Any = handle if is_async(handler) else handle_in_thread
        wrapper.__signature__ = call.signature
        return typing.cast(H, wrapper)

    return decorate


class _Undone(Exception):
    """Leaves the blocks around a handler whose outcome is not Ack, so that the record is undone."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome


class _Call:
    """The arguments of a handler, and the signature of the wrapper around it."""

    def __init__(self, handler: Callable[..., Any], transaction: Callable[[], Any] | None) -> None:
        self.name = str(getattr(handler, "__qualname__", type(handler).__qualname__))
        self._transaction = transaction
        first, *others = parameters_of(handler, self.name)
        hints = hints_of(handler, self.name)
        if typing.get_origin(hints.get(first.name)) is list:
            raise InvalidHandler(
                f"{self.name} gets batches, in which some messages may be new and others not",
                remedy="take one message at a time, or use inbox.once_many() within it",
            )
        names = {one.name for one in others}
        self._message = next((one.name for one in others if is_message(one, hints, is_batch=False)), None)
        self.connection = next((name for name in ("conn", "connection") if name in names), None)
        shown = [one for one in others if transaction is None or one.name != self.connection]
        if hints.get(first.name) is Message:
            self._message = first.name
        elif first.name == "message":
            raise InvalidHandler(f"{self.name} gets the payload as 'message'", remedy="rename that parameter")
        if self._message is None:
            shown.append(inspect.Parameter("message", inspect.Parameter.KEYWORD_ONLY))
        keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in shown]
        self.signature = inspect.Signature([first, *keyword_only])

    def split(self, payload: Any, named: dict[str, Any]) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
        """The message, and a function that gives the handler's arguments for a connection."""
        message = payload if isinstance(payload, Message) else named[self._message or "message"]

        def given(conn: Any) -> dict[str, Any]:
            wanted = {name: value for name, value in named.items() if self._message or name != "message"}
            return wanted if self.connection is None else {**wanted, self.connection: conn}

        return message, given

    def opened(self, named: dict[str, Any]) -> Any:
        """The transaction in which the message is handled: a new one, or that of the connection in the arguments."""
        if self._transaction is not None:
            return self._transaction()
        return nullcontext(named.get(self.connection or ""))

    @staticmethod
    def done(returned: Any) -> Any:
        if returned is None or isinstance(returned, Ack):
            return returned
        raise _Undone(returned)
