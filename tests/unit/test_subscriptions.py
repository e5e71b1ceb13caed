"""Handlers and their options are checked when they are registered, not at the first message."""

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
    """A bus that never connects."""
    return Bus("postgresql://nowhere/")


def refusal(bus: Bus, handler: Any, **options: Any) -> InvalidHandler:
    with pytest.raises(InvalidHandler) as refused:
        bus.subscribe("t", **options)(handler)
    assert refused.value.code == "PB420"
    assert refused.value.remedy
    assert not bus.subscriptions
    return refused.value


def test_a_handler_without_parameters(bus: Bus) -> None:
    """A handler takes a payload."""

    async def handler() -> None: ...

    async def only_by_name(*, payload: int) -> None: ...

    async def whatever(*args: Any, **kwargs: Any) -> None: ...

    for one in (handler, only_by_name, whatever):
        assert "takes no payload" in refusal(bus, one).message


def test_a_parameter_that_nobody_knows(bus: Bus) -> None:
    """A further parameter without a default cannot be filled; one with a default is left alone."""

    async def unknown(payload: int, database: Any) -> None: ...

    async def with_default(payload: int, database: Any = None) -> None: ...

    assert "parameter 'database'" in refusal(bus, unknown).message
    bus.subscribe("t")(with_default)


def test_a_parameter_by_position_only(bus: Bus) -> None:
    """What comes after the payload is passed by name."""

    async def by_position(payload: int, message: Message, /) -> None: ...

    async def first_by_position(payload: int, /, message: Message) -> None: ...

    assert "'message' by position only" in refusal(bus, by_position).message
    bus.subscribe("t")(first_by_position)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [("Missing", "'Missing'"), ("functools.Missing", "cannot be resolved"), ("1 +", "cannot be resolved")],
)
def test_an_annotation_that_cannot_be_resolved(bus: Bus, wrong: str, told: str) -> None:
    """An annotation that names nothing is told with its name."""

    async def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = wrong

    assert told in refusal(bus, handler).message


@pytest.mark.parametrize("wanted", [NotDecodable, list[NotDecodable], dict[str, NotDecodable], complex])
def test_an_annotation_that_nothing_decodes_to(bus: Bus, wanted: Any) -> None:
    """A type that no payload can become would make a dead letter of each message."""

    async def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = wanted

    told = refusal(bus, handler).message
    assert "parameter 'payload'" in told
    assert "not a type that payloads can be decoded to" in told


def test_batches_are_lists(bus: Bus) -> None:
    """A handler of batches gets a list, and says so if it says anything."""

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
    """One without the other is a mistake, and so is a sync one, which could not use the connection."""

    async def with_conn(payload: Order, conn: Any) -> None: ...

    async def without(payload: Order) -> None: ...

    def sync(payload: Order, conn: Any) -> None: ...

    assert "takes a connection but is not transactional" in refusal(bus, with_conn).message
    assert "is transactional but takes no connection" in refusal(bus, without, transactional=True).message
    assert "is transactional but not async" in refusal(bus, sync, transactional=True).message
    bus.subscribe("t", transactional=True)(with_conn)


def test_a_timeout_is_for_async_handlers(bus: Bus) -> None:
    """A thread cannot be stopped."""

    def sync(payload: Order) -> None: ...

    assert "is not async" in refusal(bus, sync, timeout=5).message


def test_generators_are_not_handlers(bus: Bus) -> None:
    """A function with yield would never run."""

    async def asynchronous(payload: Order) -> Any:
        yield

    def synchronous(payload: Order) -> Any:
        yield

    for handler in (asynchronous, synchronous):
        assert "is a generator" in refusal(bus, handler).message


@pytest.mark.parametrize("handler", [None, "handler", 5])
def test_what_cannot_be_called_is_not_a_handler(bus: Bus, handler: Any) -> None:
    """The error shows what was given."""
    assert repr(handler) in refusal(bus, handler).message


def test_a_topic_has_one_handler(bus: Bus) -> None:
    """The error names the handler that is there."""

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
def test_bad_options_of_a_subscription(bus: Bus, options: Any, why: str) -> None:
    """The error names the option, what it is, and what it may be."""

    async def handler(payload: Any) -> None: ...

    with pytest.raises(InvalidOption) as refused:
        bus.subscribe("t", **options)(handler)

    assert why in str(refused.value)
    assert refused.value.code == "PB402"
    assert not bus.subscriptions


def test_bad_topic_name(bus: Bus) -> None:
    """The name of the topic is checked too."""
    with pytest.raises(InvalidTopicName):
        bus.subscribe("a b")(print)


class _Callable:
    async def __call__(self, payload: Order, message: Message) -> None: ...

    async def method(self, payload: Order) -> None: ...


def test_all_kinds_of_callables_are_handlers(bus: Bus) -> None:
    """Methods, objects that can be called, and partial functions are known as async and with their types."""

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


async def test_nothing_to_run(bus: Bus) -> None:
    """A bus without handlers has nothing to run, and says so before it connects."""
    with pytest.raises(InvalidHandler, match="no handler is registered"):
        await bus.run()
