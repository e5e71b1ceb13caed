"""Event types as JSON Schema."""

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
"""Keywords whose values refer to nothing."""


def json_schema(registry: Registry) -> dict[str, Any]:
    """All events of a registry as one document, which `breaking_changes` compares with a later one.

    `events` tells of each type its topic, aggregate, version, and which versions can be read; `$defs` has the payloads.
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


def payload_schemas(registry: Registry, place: str) -> dict[str, Any]:
    """The payloads' schemas by event type, and those that they refer to, which stand at `place` in a document."""
    schemas: dict[str, Any] = {name: {} for name in registry.types}  # so that nothing else is called so
    for event_type in registry.types.values():
        schemas[event_type.name] = _Mover(event_type.name, place, schemas).moved(_schema_of(event_type), {})
    return schemas


def _schema_of(event_type: EventType) -> dict[str, Any]:
    try:
        return _payload_schema(event_type.payload)
    except Exception as error:  # anything: annotations, and models, are code
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
    """Moves what a schema defines within itself to the document's own place for schemas."""

    def __init__(self, prefix: str, place: str, schemas: dict[str, Any]) -> None:
        self._prefix = prefix
        self._place = place
        self._schemas = schemas

    def moved(self, node: Any, names: Mapping[str, str]) -> Any:
        """A schema with its references changed. `names` are those of definitions around it."""
        if isinstance(node, list):
            return [self.moved(one, names) for one in node]
        if isinstance(node, str) and node.startswith(_LOCAL):
            return f"{self._place}{names[node.removeprefix(_LOCAL)]}"
        if not isinstance(node, dict):
            return node
        if "$defs" in node:
            names = {**names, **{name: self._new_name(name) for name in node["$defs"]}}
            for name, definition in node["$defs"].items():
                self._schemas[names[name]] = self.moved(definition, names)
        changed = {}
        for name, value in node.items():
            if name == "properties":  # whose names are not keywords
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
