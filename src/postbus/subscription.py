"""Handlers with their options, checked when they are registered."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, TypeVar

from postbus._content.codec import Decoder, decoder_for
from postbus.errors import InvalidHandler, InvalidOption
from postbus.events import WantedEvents, wanted_events
from postbus.message import Message
from postbus.options import Duration, as_timedelta, is_count
from postbus.retry import RetryPolicy

T = TypeVar("T")
Handler = Callable[..., Any]
Maker = Callable[[str, Handler], "Subscription"]


class HandlerOptions(TypedDict, total=False):
    """Options of handlers, for queues and groups alike. They are explained at `Subscription`."""

    concurrency: int
    batch: int | None
    transactional: bool
    retry: RetryPolicy | None
    timeout: Duration | None
    poll: Duration


@dataclass(frozen=True)
class Subscription:
    """A handler, what it consumes, and how it is called."""

    topic: str
    """The name of the topic, or the scope of a group in words: see `Scope`."""
    handler: Handler
    name: str
    concurrency: int = 1
    """The number of handlers that run at the same time."""
    batch: int | None = None
    """The number of messages per call, at most; None for one message per call."""
    transactional: bool = False
    """The handler gets the connection in which the settlement commits."""
    retry: RetryPolicy | None = None
    """The retry policy; None for the topic's."""
    lease: timedelta | None = None
    """The lease, which is extended while the handler runs; None for the topic's."""
    timeout: float | None = None
    """Seconds after which an async handler is cancelled and its message tried again."""
    poll: float = 1.0
    """Seconds between polls while there are no wake-ups."""
    max_bytes: int = 16 << 20
    """Payload bytes per claim."""
    limit: int | None = None
    """The number of messages to claim in all; None for no limit."""

    def __post_init__(self) -> None:
        for name, is_right, rule in (
            ("concurrency", is_count(self.concurrency, 10_000), "concurrency goes from 1 to 10000"),
            ("batch", self.batch is None or is_count(self.batch, 10_000), "batch goes from 1 to 10000"),
            ("lease", self.lease is None or self.lease >= timedelta(seconds=1), "lease is 1 second or more"),
            ("timeout", self.timeout is None or self.timeout > 0, "timeout is positive"),
            ("poll", self.poll > 0, "poll is positive"),
            ("max_bytes", is_count(self.max_bytes, 1 << 30), "max_bytes goes from 1 to 1 GiB"),
            ("limit", self.limit is None or is_count(self.limit, 1 << 62), "limit is 1 or more"),
            ("retry", self.retry is None or isinstance(self.retry, RetryPolicy), "retry is a RetryPolicy"),
        ):
            if not is_right:
                raise InvalidOption(
                    f"the subscription to {self.topic!r} has {name} {getattr(self, name)!r}", remedy=rule
                )
        if inspect.isgeneratorfunction(self.handler) or inspect.isasyncgenfunction(self.handler):
            raise InvalidHandler(f"{self.name} is a generator", remedy="make it a function that returns its outcome")
        if self.timeout is not None and not self.is_async:
            raise InvalidHandler(
                f"{self.name} is not async, so it cannot be stopped after a timeout",
                remedy="make it async, or omit timeout",
            )
        if self.transactional and not self.is_async:
            raise InvalidHandler(
                f"{self.name} is transactional but not async",
                remedy="make it async: it gets a connection of asyncpg",
            )
        HandlerCall.of(self)  # raise for a mistake now, not at the first message

    @property
    def is_async(self) -> bool:
        return is_async(self.handler)

    @property
    def slots(self) -> int:
        """The number of messages that may be in hand at the same time."""
        return self.concurrency * (self.batch or 1)


def maker(topic: str, options: HandlerOptions, lease: Duration | None = None) -> Maker:
    """A function that makes subscriptions to a topic with these options, from a name and a handler."""
    timeout = options.get("timeout")

    def make(name: str, handler: Handler) -> Subscription:
        return Subscription(
            topic=topic,
            handler=handler,
            name=name,
            concurrency=options.get("concurrency", 1),
            batch=options.get("batch"),
            transactional=options.get("transactional", False),
            retry=options.get("retry"),
            lease=None if lease is None else as_timedelta(lease, name="lease"),
            timeout=None if timeout is None else as_timedelta(timeout, name="timeout").total_seconds(),
            poll=as_timedelta(options.get("poll", 1.0), name="poll").total_seconds(),
        )

    return make


def is_async(handler: Handler) -> bool:
    """Whether a call of the handler returns an awaitable."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


@dataclass(frozen=True)
class HandlerCall:
    """The arguments that a handler takes, read from its signature."""

    decoder: Decoder | None
    """Decodes payloads; None for a handler whose first argument is the message itself, or an event."""
    events: WantedEvents | None
    """The events of a handler whose first argument is an event of a registry."""
    message_parameter: str | None
    connection_parameter: str | None

    @classmethod
    def of(cls, subscription: Subscription) -> HandlerCall:
        handler, name = subscription.handler, subscription.name
        first, *others = parameters_of(handler, name)
        hints = hints_of(handler, name)
        wanted = hints.get(first.name, Any)
        if subscription.batch is not None:
            wanted = _element_of(wanted, first.name, name)
        message_parameter = connection_parameter = None
        for parameter in others:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise InvalidHandler(
                    f"{name} takes {parameter.name!r} by position only",
                    remedy="move the / behind the first parameter",
                )
            if is_message(parameter, hints, is_batch=subscription.batch is not None):
                message_parameter = parameter.name
            elif parameter.name in ("conn", "connection"):
                connection_parameter = parameter.name
            elif parameter.default is inspect.Parameter.empty:
                raise InvalidHandler(
                    f"{name} has a parameter {parameter.name!r} that Postbus does not know",
                    remedy="a handler takes (payload), (payload, message) or, if transactional, "
                    "(payload, message, conn)",
                )
        if (connection_parameter is not None) != subscription.transactional:
            raise InvalidHandler(
                f"{name} takes a connection but is not transactional"
                if connection_parameter
                else f"{name} is transactional but takes no connection",
                remedy="use transactional=True together with a parameter named conn",
            )
        events = _decoded(wanted_events, wanted, first.name, name)
        decoder = None if wanted is Message or events else _decoded(decoder_for, wanted, first.name, name)
        return cls(decoder, events, message_parameter, connection_parameter)

    def payload(self, message: Message) -> Any:
        """The first argument of the handler for a message. Raises the errors in NOT_DECODABLE."""
        if self.decoder is not None:
            return self.decoder(message.payload, message.content_type)
        return message if self.events is None else self.events.payload(message)

    def named_arguments(self, message: Any, conn: Any) -> dict[str, Any]:
        """The arguments of the handler beside the payload."""
        named = {}
        if self.message_parameter is not None:
            named[self.message_parameter] = message
        if self.connection_parameter is not None:
            named[self.connection_parameter] = conn
        return named


def parameters_of(handler: Handler, name: str) -> list[inspect.Parameter]:
    """The parameters of a handler, without *args and **kwargs. The first is for the payload."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidHandler(f"{name} is not a function: {error}", remedy="register a function") from error
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not plain or plain[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise InvalidHandler(f"{name} takes no payload", remedy="a handler takes (payload) or (payload, message)")
    return plain


def hints_of(handler: Handler, name: str) -> dict[str, Any]:
    """The types of a handler's parameters."""
    function = inspect.unwrap(handler)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except Exception as error:  # an annotation is code, and may raise anything
        raise InvalidHandler(
            f"an annotation of {name} cannot be resolved: {error}",
            remedy="define the type at the top level of its module",
        ) from error


def _element_of(wanted: Any, parameter: str, name: str) -> Any:
    if wanted is Any:
        return Any
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is not None and isinstance(origin, type) and issubclass(list, origin) and len(arguments) == 1:
        return arguments[0]
    if wanted is list:
        return Any
    raise InvalidHandler(
        f"{name} gets batches, but its parameter {parameter!r} is a {getattr(wanted, '__name__', wanted)}",
        remedy="annotate it as a list, such as list[Order], or omit batch",
    )


def is_message(parameter: inspect.Parameter, hints: dict[str, Any], *, is_batch: bool) -> bool:
    """Whether a parameter beside the payload takes the message itself, or the batch of messages."""
    wanted = hints.get(parameter.name)
    if wanted is Message or (is_batch and Message in typing.get_args(wanted)):
        return True
    return wanted is None and parameter.name == ("messages" if is_batch else "message")


def _decoded(how: Callable[[Any], T], wanted: Any, parameter: str, name: str) -> T:
    try:
        return how(wanted)
    except Exception as error:  # an annotation within the type is code, and may raise anything
        raise InvalidHandler(
            f"{name} cannot get its parameter {parameter!r}: {error}",
            remedy="annotate it with a dataclass, a msgspec struct, a pydantic model, dict, list, str, bytes",
        ) from error
