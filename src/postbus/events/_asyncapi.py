"""Exporting a registry as an AsyncAPI document."""

from __future__ import annotations

from typing import Any

from postbus._content.identity import AGGREGATE_ID, AGGREGATE_TYPE, EVENT_TYPE, EVENT_VERSION
from postbus.events._registry import EventType, Registry
from postbus.events._schema import payload_schemas

_SCHEMAS = "#/components/schemas/"


def asyncapi(registry: Registry) -> dict[str, Any]:
    """A document of AsyncAPI 3.0, with a channel for each topic and a message for each event type."""
    topics: dict[str, list[EventType]] = {}
    for event_type in registry.types.values():
        topics.setdefault(event_type.topic, []).append(event_type)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": registry.title, "version": registry.version},
        "defaultContentType": "application/json",
        "channels": {
            topic: {
                "address": topic,
                "messages": {one.name: {"$ref": f"#/components/messages/{one.name}"} for one in events},
            }
            for topic, events in topics.items()
        },
        "operations": {
            f"emit {topic}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{_pointer(topic)}"},
                "messages": [{"$ref": f"#/channels/{_pointer(topic)}/messages/{one.name}"} for one in events],
            }
            for topic, events in topics.items()
        },
        "components": {
            "messages": {name: _message(one) for name, one in registry.types.items()},
            "schemas": payload_schemas(registry, _SCHEMAS),
        },
    }


def _message(event_type: EventType) -> dict[str, Any]:
    version = str(event_type.version)
    constants = {EVENT_TYPE: event_type.name, EVENT_VERSION: version, AGGREGATE_TYPE: event_type.aggregate}
    properties: dict[str, Any] = {name: {"type": "string", "const": value} for name, value in constants.items()}
    properties[AGGREGATE_ID] = {"type": "string", "minLength": 1}
    return {
        "name": event_type.name,
        "contentType": "application/json",
        "headers": {"type": "object", "properties": properties, "required": list(properties)},
        "payload": {"$ref": f"{_SCHEMAS}{event_type.name}"},
    }


def _pointer(name: str) -> str:
    """Escape a name for a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
