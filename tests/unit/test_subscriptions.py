"""Handlers and their options are checked at registration, not at the first message."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from postbus import Bus, DuplicateHandler, InvalidHandler, InvalidOption, InvalidTopicName, Message
from postbus.subscription import HandlerCall


@dataclass
class Order:
    id: int


class NotDecodable:
    pass


@pytest.fixture
def bus() -> Bus:
    """Return a bus that never connects."""
    return Bus("postgresql://nowhere/")


def refusal(bus: Bus, handler: Any, **options: Any) -> InvalidHandler:
    with pytest.raises(InvalidHandler) as refused:
        bus.subscribe("t", **options)(handler)
    assert refused.value.code == "PB420"
    assert refused.value.remedy
    assert not bus.subscriptions
    return refused.value


def test_handler_without_a_payload_is_refused(bus: Bus) -> None:
    """A handler takes a payload by position."""

    async def handler() -> None: ...

    async def only_by_name(*, payload: int) -> None: ...

    async def whatever(*args: Any, **kwargs: Any) -> None: ...

    for one in (handler, only_by_name, whatever):
        assert "takes no payload" in refusal(bus, one).message


def test_handler_with_an_unknown_parameter_is_refused(bus: Bus) -> None:
    """A further parameter without a default cannot be filled; one with a default is ignored."""

    async def unknown(payload: int, database: Any) -> None: ...

    async def with_default(payload: int, database: Any = None) -> None: ...

    assert "parameter 'database'" in refusal(bus, unknown).message
    bus.subscribe("t")(with_default)


def test_unknown_option_is_refused(bus: Bus) -> None:
    """A misspelt option fails where the handler or the group is registered, and the error lists the options."""
    register: Any = bus.subscribe
    with pytest.raises(TypeError, match=r"no option 'concurency': there are concurrency, .*look_back"):
        register("t", concurency=2)
    group: Any = bus.group
    with pytest.raises(TypeError, match=r"no option 'start': there are concurrency, .*catch_up"):
        group("g", "t", start="FROM_NOW")


def test_second_parameter_by_position_only_is_refused(bus: Bus) -> None:
    """Parameters after the payload are passed by name."""

    async def by_position(payload: int, message: Message, /) -> None: ...

    async def first_by_position(payload: int, /, message: Message) -> None: ...

    assert "'message' by position only" in refusal(bus, by_position).message
    bus.subscribe("t")(first_by_position)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [("Missing", "'Missing'"), ("functools.Missing", "cannot be resolved"), ("1 +", "cannot be resolved")],
)
def test_unresolvable_annotation_is_refused(bus: Bus, wrong: str, told: str) -> None:
    """The error has the missing name."""

    async def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = wrong

    assert told in refusal(bus, handler).message


@pytest.mark.parametrize("wanted", [NotDecodable, list[NotDecodable], dict[str, NotDecodable], complex])
def test_undecodable_annotation_is_refused(bus: Bus, wanted: Any) -> None:
    """A type that no payload can become would make a dead letter of each message."""

    async def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = wanted

    told = refusal(bus, handler).message
    assert "parameter 'payload'" in told
    assert "not a type that payloads can be decoded to" in told


def test_batch_handler_must_take_a_list(bus: Bus) -> None:
    """Its annotation is a list or a sequence, or missing."""

    async def one(payload: Order) -> None: ...

    async def pair(payload: tuple[Order, Order]) -> None: ...

    async def orders(payload: list[Order], messages: list[Message]) -> None: ...

    async def sequence(payload: Sequence[Order]) -> None: ...

    async def silent(payload: Any) -> None: ...

    del silent.__annotations__["payload"]

    for handler in (one, pair):
        assert "gets batches" in refusal(bus, handler, batch=10).message
    several: tuple[Any, ...] = (orders, sequence, silent)
    for place, fine in enumerate(several):
        bus.subscribe(f"t{place}", batch=10)(fine)


def test_connections_belong_to_transactional_handlers(bus: Bus) -> None:
    """One without the other is refused, and so is a sync handler, which could not use the connection."""

    async def with_conn(payload: Order, conn: Any) -> None: ...

    async def without(payload: Order) -> None: ...

    def sync(payload: Order, conn: Any) -> None: ...

    assert "takes a connection but is not transactional" in refusal(bus, with_conn).message
    assert "is transactional but takes no connection" in refusal(bus, without, transactional=True).message
    assert "is transactional but not async" in refusal(bus, sync, transactional=True).message
    bus.subscribe("t", transactional=True)(with_conn)


def test_timeout_is_for_async_handlers(bus: Bus) -> None:
    """A thread cannot be stopped."""

    def sync(payload: Order) -> None: ...

    assert "is not async" in refusal(bus, sync, timeout=5).message


def test_generators_are_refused_as_handlers(bus: Bus) -> None:
    """A function with yield would never run."""

    async def asynchronous(payload: Order) -> Any:
        yield

    def synchronous(payload: Order) -> Any:
        yield

    for handler in (asynchronous, synchronous):
        assert "is a generator" in refusal(bus, handler).message


@pytest.mark.parametrize("handler", [None, "handler", 5])
def test_uncallable_handler_is_refused(bus: Bus, handler: Any) -> None:
    """The error shows the given object."""
    assert repr(handler) in refusal(bus, handler).message


def test_topic_has_only_one_handler(bus: Bus) -> None:
    """The error names the existing handler."""

    async def first(payload: Order) -> None: ...

    async def second(payload: Order) -> None: ...

    bus.subscribe("t", name="the first")(first)
    with pytest.raises(DuplicateHandler, match="topic 't' has a handler already: the first") as refused:
        bus.subscribe("t")(second)

    assert refused.value.code == "PB421"
    assert [one.handler for one in bus.subscriptions] == [first]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "has concurrency 0 (concurrency goes from 1 to 10000)"),
        ({"concurrency": 10_001}, "has concurrency 10001"),
        ({"concurrency": True}, "has concurrency True"),
        ({"concurrency": 2.0}, "has concurrency 2.0"),
        ({"concurrency": "2"}, "has concurrency '2'"),
        ({"concurrency": None}, "has concurrency None"),
        ({"batch": 0}, "has batch 0 (batch goes from 1 to 10000)"),
        ({"batch": "x"}, "has batch 'x'"),
        ({"lease": 0.5}, "(lease is 1 second or more)"),
        ({"lease": "soon"}, "lease 'soon' is not a duration"),
        ({"timeout": 0}, "has timeout 0.0 (timeout is positive)"),
        ({"timeout": -1}, "has timeout -1.0"),
        ({"timeout": float("nan")}, "timeout nan is not a duration"),
        ({"timeout": []}, "timeout [] is not a duration"),
        ({"poll": 0}, "has poll 0.0 (poll is positive)"),
        ({"poll": "-1s"}, "poll '-1s' is not a duration"),
        ({"poll": float("inf")}, "poll inf is not a duration"),
        ({"poll": None}, "poll None is not a duration"),
        ({"retry": 5}, "has retry 5 (retry is a RetryPolicy)"),
    ],
    ids=str,
)
def test_bad_subscription_options_are_refused(bus: Bus, options: Any, why: str) -> None:
    """The error has the option, its value, and what it may be."""

    async def handler(payload: Any) -> None: ...

    with pytest.raises(InvalidOption) as refused:
        bus.subscribe("t", **options)(handler)

    assert why in str(refused.value)
    assert refused.value.code == "PB402"
    assert not bus.subscriptions


def test_bad_topic_name_is_refused(bus: Bus) -> None:
    """The name is checked at registration too."""
    with pytest.raises(InvalidTopicName):
        bus.subscribe("a b")(print)


class _Callable:
    async def __call__(self, payload: Order, message: Message) -> None: ...

    async def method(self, payload: Order) -> None: ...


def test_all_kinds_of_callables_are_handlers(bus: Bus) -> None:
    """Methods, callable objects and partial functions are recognised as async, with their types."""

    async def partial(option: int, payload: Order) -> None: ...

    @functools.wraps(_Callable().method)
    async def wrapped(*args: Any) -> None: ...

    handlers: tuple[Any, ...] = (_Callable(), _Callable().method, functools.partial(partial, 1), wrapped)
    for place, handler in enumerate(handlers):
        bus.subscribe(f"t{place}")(handler)

    for one in bus.subscriptions:
        decode = HandlerCall.of(one).decoder
        assert one.is_async
        assert decode is not None
        assert decode(b'{"id":1}', "application/json") == Order(1)


async def test_running_without_handlers_is_refused(bus: Bus) -> None:
    """The error comes before the bus connects."""
    with pytest.raises(InvalidHandler, match="no handler is registered"):
        await bus.run()
