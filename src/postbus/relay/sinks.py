"""Sinks by their address: nats://…, kafka://…, amqp://…, redis://…, pubsub://…, https://…, postgresql://… and null:"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from postbus._db.addresses import public_address
from postbus.errors import InvalidOption
from postbus.message import Ack, Outcome
from postbus.relay.kafka import KafkaSink
from postbus.relay.nats import NatsSink
from postbus.relay.plan import kind_of
from postbus.relay.postbus import PostbusSink
from postbus.relay.pubsub import PubSubSink
from postbus.relay.rabbitmq import RabbitSink
from postbus.relay.redis import RedisSink
from postbus.relay.sink import Parcel, Sink
from postbus.relay.webhook import WebhookSink

Load = Callable[[str], Any]
"""A function that finds the object that a name such as module:name stands for."""


class NullSink:
    """Acknowledges everything and keeps nothing, to measure the relay alone."""

    keeps_order = True
    kind = "null"

    def __init__(self, url: str = "null:") -> None:
        self.sent = 0

    async def open(self) -> None:
        pass

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        self.sent += len(parcels)
        return [Ack()] * len(parcels)

    async def close(self) -> None:
        pass


SCHEMES: Mapping[str, Callable[..., Sink]] = {
    "nats": NatsSink,
    "tls": NatsSink,
    "kafka": KafkaSink,
    "amqp": RabbitSink,
    "amqps": RabbitSink,
    "redis": RedisSink,
    "rediss": RedisSink,
    "pubsub": PubSubSink,
    "http": WebhookSink,
    "https": WebhookSink,
    "postgresql": PostbusSink,
    "postgres": PostbusSink,
    "null": NullSink,
}


def kind_at(url: str) -> str:
    """The name of a sink if nobody named it."""
    made = SCHEMES.get(url.partition(":")[0].lower())
    return kind_of(made) if made is not None else url.rpartition(":")[2].lower()


def sink_of(url: str, options: Mapping[str, Any], load: Load) -> Sink:
    """Make the sink at an address, or the one that `module:name` names, with options. Refuses unknown options."""
    scheme = url.partition(":")[0].lower()
    if scheme in SCHEMES:
        return _made(SCHEMES[scheme], (url,), options, url)
    if "://" in url or ":" not in url:
        raise InvalidOption(f"sink {url!r:.100} is of no known kind", remedy=f"use {', '.join(SCHEMES)} or module:name")
    found = load(url)
    if callable(found) and (inspect.isclass(found) or not isinstance(found, Sink)):
        return _made(found, (), options, url)
    if options:
        raise InvalidOption(f"{url} is a sink already, and takes no options", remedy="name a class, or omit them")
    if not isinstance(found, Sink):
        raise InvalidOption(f"{url} is not a sink but of type {type(found).__name__}", remedy="see postbus.relay.Sink")
    return found


def _made(make: Callable[..., Any], args: tuple[str, ...], options: Mapping[str, Any], url: str) -> Sink:
    known = [name for name, one in inspect.signature(make).parameters.items() if one.kind is not one.VAR_POSITIONAL]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in inspect.signature(make).parameters.values())
    unknown = [name for name in options if name not in known[len(args) :]]
    if unknown and not takes_any:
        listed = ", ".join(known[len(args) :]) or "no options"
        raise InvalidOption(f"sink {public_address(url)} has no option {unknown[0]!r}", remedy=f"it has {listed}")
    try:
        made: Sink = make(*args, **options)
    except TypeError as error:
        raise InvalidOption(
            f"sink {public_address(url)} cannot be made: {error}", remedy="correct the options of the sink"
        ) from error
    with contextlib.suppress(TypeError):  # the sink has slots
        vars(made).setdefault("address", public_address(url))  # shown to operators
    return made
