"""Hooks around publishing and handling, for metrics, tracing, logging and the like."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from postbus.message import Message, Outgoing


class Middleware:
    """Override one method or both. The middleware that was added first is the outermost."""

    def publishing(self, topic: str, messages: Sequence[Outgoing]) -> AbstractContextManager[Sequence[Outgoing]]:
        """A block around the publishing of messages. It yields the messages to publish."""
        return _unchanged(messages)

    async def handling(self, messages: Sequence[Message], call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Called instead of a handler, with its message or batch. It calls `call_next` and returns the result."""
        return await call_next()


@contextmanager
def _unchanged(messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
    yield messages


def publishing(
    chain: Sequence[Middleware], topic: str, messages: Sequence[Outgoing]
) -> AbstractContextManager[Sequence[Outgoing]]:
    """The hooks of all middleware around one publishing."""
    return _hooks(chain, topic, messages) if chain else nullcontext(messages)


@contextmanager
def _hooks(chain: Sequence[Middleware], topic: str, messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
    with ExitStack() as stack:
        for middleware in chain:
            messages = stack.enter_context(middleware.publishing(topic, messages))
        yield messages


def handling(
    chain: Sequence[Middleware], messages: Sequence[Message], handler: Callable[[], Awaitable[Any]]
) -> Awaitable[Any]:
    """The hooks of all middleware around one call of a handler."""
    if not chain:
        return handler()
    return chain[0].handling(messages, lambda: handling(chain[1:], messages, handler))
