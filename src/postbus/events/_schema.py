"""Exporting event types as JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from postbus._content.codec import is_pydantic
from postbus.errors import InvalidEvent
from postbus.events._registry import EventType, Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LOCAL = "#/$defs/"
_DATA = ("default", "enum", "const", "examples", "title", "description")
"""Keywords whose values contain no references."""


def json_schema(registry: Registry) -> dict[str, Any]:
    """All events of a registry as one document, which `breaking_changes` compares with a later one.

    `events` has the topic, the aggregate, the version and the readable versions of each type; `$defs` the payloads.
    """
    return {
        "$schema": DIALECT,
        "title": registry.title,
        "events": {
            name: {
                "topic": one.topic,
                "aggregate": one.aggregate,
                "version": one.version,
                "reads": registry.readable_versions(name),
                "payload": {"$ref": f"{_LOCAL}{name}"},
            }
            for name, one in registry.types.items()
        },
        "$defs": payload_schemas(registry, _LOCAL),
    }


def payload_schemas(registry: Registry, location: str) -> dict[str, Any]:
    """The payloads' schemas by event type, and those that they refer to, for a place in a document."""
    schemas: dict[str, Any] = {name: {} for name in registry.types}  # reserves the names of the event types
    for event_type in registry.types.values():
        schemas[event_type.name] = _Mover(event_type.name, location, schemas).moved(_schema_of(event_type), {})
    return schemas


def _schema_of(event_type: EventType) -> dict[str, Any]:
    try:
        return _payload_schema(event_type.payload)
    except Exception as error:  # annotations and models are code, and may raise anything
        raise InvalidEvent(
            f"the payload of event type {event_type.name!r} has no JSON Schema: {error}",
            remedy="annotate its fields with types that JSON can express",
        ) from error


def _payload_schema(kind: Any) -> dict[str, Any]:
    if is_pydantic(kind):
        schema: dict[str, Any] = kind.model_json_schema(by_alias=True)
        return schema
    return msgspec.json.schema(kind, schema_hook=_payload_schema)


class _Mover:
    """Moves the definitions inside of a schema to the document's place for schemas."""

    def __init__(self, prefix: str, location: str, schemas: dict[str, Any]) -> None:
        self._prefix = prefix
        self._location = location
        self._schemas = schemas

    def moved(self, node: Any, names: Mapping[str, str]) -> Any:
        """A schema with its references changed. `names` maps the names of definitions around it."""
        if isinstance(node, list):
            return [self.moved(one, names) for one in node]
        if isinstance(node, str) and node.startswith(_LOCAL):
            return f"{self._location}{names[node.removeprefix(_LOCAL)]}"
        if not isinstance(node, dict):
            return node
        if "$defs" in node:
            names = {**names, **{name: self._new_name(name) for name in node["$defs"]}}
            for name, definition in node["$defs"].items():
                self._schemas[names[name]] = self.moved(definition, names)
        changed = {}
        for name, value in node.items():
            if name == "properties":  # the names in it are not keywords
                changed[name] = {inner: self.moved(schema, names) for inner, schema in value.items()}
            elif name != "$defs":
                changed[name] = value if name in _DATA else self.moved(value, names)
        return changed

    def _new_name(self, name: str) -> str:
        wanted = f"{self._prefix}.{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
        found, count = wanted, 1
        while found in self._schemas:
            count += 1
            found = f"{wanted}_{count}"
        self._schemas[found] = {}
        return found
