"""Planning a relay: from a topic, a sink and options to a handler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from postbus._consumers.handlers import HandlerRegistry
from postbus._content.names import check_topic_name
from postbus._db.store import Store
from postbus._runtime.log_events import event
from postbus.catch_up import CatchUp
from postbus.errors import InvalidOption, PostbusError, TopicNotFound
from postbus.options import Duration, as_timedelta
from postbus.relay.envelope import Envelope, Form
from postbus.relay.relay import EventRegistry, Relay
from postbus.relay.sink import Sink
from postbus.relay.sink_monitor import SinkMonitor
from postbus.results import TopicInfo
from postbus.retry import RetryPolicy
from postbus.start import Start
from postbus.subscription import HandlerOptions

BATCH, CONCURRENCY, POLL, MAX_ATTEMPTS, RETENTION = 50, 1, timedelta(milliseconds=500), 25, timedelta(days=30)
IN_ORDER = CatchUp(max_rate=None, beside_from=2**62)
"""A relay that is behind skips nothing, and sends old messages before new ones."""


class RelayOptions(TypedDict, total=False):
    """Options of a relay. The default of each is in brackets."""

    target: str | None
    """The target in the sink: a template with {topic}, {key}, {event_type}, {aggregate_type}, {aggregate_id}
    (the sink's own address if it has one, else {topic})."""
    form: Form | str
    """attributes, cloudevents or cloudevents-structured (attributes)."""
    source: str | None
    """The source attribute of CloudEvents (/postbus/, the database's source, and the topic)."""
    registry: EventRegistry | None
    """Checks messages: those that it refuses become dead letters at once (none)."""
    batch: int
    """The number of messages that are sent at a time (50)."""
    concurrency: int
    """The number of batches under way at the same time. Messages of one key are in one of them (1)."""
    poll: Duration
    """The time between polls while there are no wake-ups (500 ms)."""
    max_attempts: int
    """Attempts before a refused message becomes a dead letter; the topic has the time between them (25)."""
    retention: Duration
    """How long sent messages should be kept for replays. A topic that keeps them for less is logged (30 days)."""


@dataclass(frozen=True)
class Planned:
    """A relay, and how the bus is to run it."""

    topic: str
    relay: Relay
    handling: HandlerOptions
    retry: RetryPolicy
    is_of_queue: bool


async def plan(
    store: Store,
    topic: str,
    sink: Sink,
    name: str | None,
    options: RelayOptions,
    *,
    is_stopping: Callable[[], bool] = lambda: False,
    suffix: str = "",
) -> Planned:
    """The plan for a topic and a sink."""
    check_topic_name(topic)
    _check(options)
    kept = as_timedelta(options.get("retention", RETENTION), name="retention")
    found = await store.topics(topic)
    if not found:
        raise TopicNotFound(
            f"there is no topic {topic!r} to relay",
            remedy=f"create it: postbus topics create {topic} --semantics PUB_SUB --retention {as_retention(kept)}",
        )
    if (short := short_retention(found[0].retention, kept)) is not None:
        event(logging.WARNING, "relay.retention", topic=topic, problem=short)
    source = options.get("source") or f"/postbus/{store.source}/{topic}"
    route = name or f"relay-{kind_of(sink)}"
    target = options.get("target") or getattr(sink, "target", None) or "{topic}"
    quote = getattr(sink, "quote", str)
    form = options.get("form", Form.ATTRIBUTES)
    envelope = Envelope(target, form=form, source=source, route=route, suffix=suffix, quote=quote)
    is_queue = found[0].semantics == "QUEUE"
    monitor = SinkMonitor(store, topic, None if is_queue else route, getattr(sink, "address", None) or kind_of(sink))
    relay = Relay(route, sink, envelope, registry=options.get("registry"), is_stopping=is_stopping, monitor=monitor)
    retry = retry_of(found[0], options.get("max_attempts", MAX_ATTEMPTS))
    handling: HandlerOptions = {
        "batch": options.get("batch", BATCH),
        "concurrency": options.get("concurrency", CONCURRENCY),
        "poll": options.get("poll", POLL),
        "retry": retry,
    }
    return Planned(topic, relay, handling, retry, is_queue)


async def register(planned: Planned, handlers: HandlerRegistry, start: Start | str | datetime | int) -> None:
    """Make a relay the handler of its QUEUE, or start a group for it."""
    topic, relay, handling = planned.topic, planned.relay, planned.handling
    if planned.is_of_queue:
        if Start.of(start) != Start.BEGINNING:
            raise InvalidOption(f"topic {topic!r} is a QUEUE, which has no position to start at", remedy="omit start")
        handlers.decorator(topic, name=relay.name, **handling)(relay.handle)
        return
    group = handlers.group(relay.name, topic, catch_up=IN_ORDER, **handling)
    group.add_member("sink", relay.handle)
    try:
        await group.start(start)
    except PostbusError:
        handlers.groups.remove(group)  # so that the caller can try again
        raise


def retry_of(topic: TopicInfo, max_attempts: int) -> RetryPolicy:
    """The retry policy of a topic, with another number of attempts."""
    return RetryPolicy(
        max_attempts=max_attempts,
        initial=topic.retry_initial.total_seconds(),
        factor=topic.retry_factor,
        maximum=topic.retry_max.total_seconds(),
        jitter=topic.retry_jitter,
    )


def _check(options: RelayOptions) -> None:
    unknown = sorted(set(options) - set(RelayOptions.__annotations__))
    if unknown:
        raise InvalidOption(
            f"a relay has no option {unknown[0]!r}", remedy=f"use {', '.join(RelayOptions.__annotations__)}"
        )


def short_retention(has: timedelta, wanted: timedelta) -> str | None:
    """Say what is wrong with a topic's retention, for a relay that wants to send messages again."""
    if has >= wanted:
        return None
    return f"the topic keeps sent messages for {has}, and the relay wants {wanted}"


def as_retention(kept: timedelta) -> str:
    """The value for --retention on the command line, with --max-retention beyond the default of 30 days."""
    length = f"{kept.total_seconds():.0f}s"
    return f"{length} --max-retention {length}" if kept > RETENTION else length


def kind_of(sink: object) -> str:
    """The name of a sink if nobody named it."""
    return str(getattr(sink, "kind", type(sink).__name__.lower()))
