"""The registry of event types, by which events are checked when they are emitted and when they are read."""

from postbus._content.identity import AGGREGATE_ID, AGGREGATE_TYPE, EVENT_TYPE, EVENT_VERSION
from postbus.events._asyncapi import asyncapi
from postbus.events._compare import breaking_changes
from postbus.events._registry import (
    EventType,
    Registry,
    WantedEvents,
    emission,
    wanted_events,
)
from postbus.events._schema import json_schema

__all__ = [
    "AGGREGATE_ID",
    "AGGREGATE_TYPE",
    "EVENT_TYPE",
    "EVENT_VERSION",
    "EventType",
    "Registry",
    "WantedEvents",
    "asyncapi",
    "breaking_changes",
    "emission",
    "json_schema",
    "wanted_events",
]
