"""A registry as documents: JSON Schema, AsyncAPI, and the changes between two of them."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from postbus import InvalidInput
from postbus._content.codec import encode
from postbus.events import Registry, asyncapi, breaking_changes, json_schema

jsonschema: Any = importlib.import_module("jsonschema")  # it has no type hints


class Address(msgspec.Struct):
    street: str


class Geo(pydantic.BaseModel):
    lat: float


class Place(pydantic.BaseModel):
    geo: Geo | None = None


SHOP = Registry(title="Shop", version="2.1.0")
SHOP.upcast("store.opened", from_version=1)(lambda payload: payload)


@SHOP.event("store.opened", topic="stores/all", aggregate="store", version=2)
class Opened(msgspec.Struct, rename="camel"):
    store_id: str
    address: Address
    parent: Opened | None = None


@SHOP.event("store.moved", topic="stores/all", aggregate="store")
@dataclasses.dataclass
class Moved:
    to: Place
    tags: dict[str, int]


class moved(pydantic.BaseModel):
    """Within the event type "store" its name would be the same as another event type."""

    place: Place


@SHOP.event("store", topic="audit", aggregate="store")
class Audited(pydantic.BaseModel):
    moved: moved


GIVEN: dict[str, Any] = {
    "store.opened": {
        "storeId": "s",
        "address": {"street": "x"},
        "parent": {"storeId": "t", "address": {"street": "y"}},
    },
    "store.moved": {"to": {"geo": {"lat": 1.5}}, "tags": {"a": 1}},
    "store": {"moved": {"place": {"geo": None}}},
}
WRONG: dict[str, Any] = {
    "store.opened": {"storeId": "s", "address": {"street": "x"}, "parent": {"storeId": "t", "address": {}}},
    "store.moved": {"to": {"geo": {"lat": "high"}}, "tags": {"a": 1}},
    "store": {"moved": {"place": {"geo": {}}}},
}


@pytest.mark.parametrize("name", GIVEN)
def test_schemas_accept_what_the_registry_accepts(name: str) -> None:
    """Each payload can be validated by a reference into the document, with nested types and models."""
    document = json_schema(SHOP)
    jsonschema.Draft202012Validator.check_schema(document)
    one = jsonschema.Draft202012Validator({**document, "$ref": document["events"][name]["payload"]["$ref"]})

    assert one.is_valid(GIVEN[name])
    assert not one.is_valid(WRONG[name])


def test_document_describes_each_event_type() -> None:
    """The description includes the readable versions."""
    document = json_schema(SHOP)

    assert document["title"] == "Shop"
    assert document["events"]["store.opened"] == {
        "topic": "stores/all",
        "aggregate": "store",
        "version": 2,
        "reads": [1, 2],
        "payload": {"$ref": "#/$defs/store.opened"},
    }


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def found(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    node = document
    for part in reference[2:].split("/"):
        node = node[part.replace("~1", "/").replace("~0", "~")]
    return node


def test_asyncapi_document_follows_version_3() -> None:
    """It has channels with addresses, messages with payloads and headers, operations, and no dangling reference."""
    document = asyncapi(SHOP)

    assert document["asyncapi"] == "3.0.0"
    assert document["info"] == {"title": "Shop", "version": "2.1.0"}
    assert set(document) == {"asyncapi", "info", "defaultContentType", "channels", "operations", "components"}
    assert {topic: set(one["messages"]) for topic, one in document["channels"].items()} == {
        "stores/all": {"store.opened", "store.moved"},
        "audit": {"store"},
    }
    for reference in references(document):
        found(document, reference)
    for kind in document["components"].values():
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in kind)
    for topic, channel in document["channels"].items():
        operation = document["operations"][f"emit {topic}"]
        assert operation["action"] == "send"
        assert found(document, operation["channel"]["$ref"]) is channel
        assert [found(document, one["$ref"]) for one in operation["messages"]] == list(channel["messages"].values())
    opened = document["components"]["messages"]["store.opened"]
    assert opened["headers"]["properties"]["event-type"] == {"type": "string", "const": "store.opened"}
    assert opened["headers"]["properties"]["event-version"] == {"type": "string", "const": "2"}
    schema = {**document, "$ref": opened["payload"]["$ref"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(GIVEN["store.opened"])
    assert not jsonschema.Draft202012Validator(schema).is_valid(WRONG["store.opened"])


def document(fields: list[Any], *, name: str = "e", version: int = 1, upcasts: int = 0, **options: Any) -> Any:
    """Return a registry with one event, exported."""
    registry = Registry()
    payload = msgspec.defstruct("E", fields, forbid_unknown_fields=options.pop("strict", False))
    registry.event(name, **{"topic": "t", "aggregate": "a", **options}, version=version)(payload)
    for step in range(version - upcasts, version):
        registry.upcast(name, from_version=step)(lambda payload: payload)
    return json_schema(registry)


_N = ("n", int)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ([_N], [_N]),
        ([_N], [_N, ("m", int, 0)]),
        ([_N, ("m", int, 0)], [_N]),
        ([("n", int | None, None)], [("n", int | None, None), ("s", list[str], [])]),
        ([("n", Annotated[int, msgspec.Meta(ge=1)])], [("n", Annotated[int, msgspec.Meta(ge=1)])]),
        ([("n", dict[str, tuple[int, str]])], [("n", dict[str, tuple[int, str]])]),
    ],
)
def test_change_readable_both_ways_is_not_breaking(earlier: list[Any], later: list[Any]) -> None:
    """Optional fields may be added and removed."""
    assert breaking_changes(document(earlier), document(later)) == []


_BEFORE = "e: what was emitted before cannot be read: "
_AFTER = "e: programs that know the earlier schema cannot read what is emitted now: "


@pytest.mark.parametrize(
    ("earlier", "later", "changes"),
    [
        ([_N], [_N, ("m", int)], [_BEFORE + "payload.m may be missing"]),
        ([_N, ("m", int)], [_N], [_AFTER + "payload.m may be missing"]),
        ([_N], [("n", str)], [_BEFORE + "payload.n may be integer", _AFTER + "payload.n may be string"]),
        ([_N], [("n", float)], [_AFTER + "payload.n may be number"]),
        ([_N], [("n", int | None)], [_AFTER + "payload.n may be null"]),
        ([("n", int | None)], [_N], [_BEFORE + "payload.n may be null"]),
        (
            [("n", int | str)],
            [("n", int | None)],
            [_BEFORE + "payload.n may be string", _AFTER + "payload.n may be null"],
        ),
        ([("n", Literal["a", "b"])], [("n", Literal["a"])], [_BEFORE + "payload.n may be 'b'"]),
        ([("n", Literal["a"])], [("n", str)], [_AFTER + "payload.n may be other than 'a'"]),
        (
            [("n", list[int])],
            [("n", list[str])],
            [_BEFORE + "payload.n[] may be integer", _AFTER + "payload.n[] may be string"],
        ),
        ([("n", Any)], [_N], [_BEFORE + "payload.n may be anything"]),
        ([("n", dict[str, int])], [("n", dict[str, float])], [_AFTER + "payload.n.* may be number"]),
        (
            [("n", tuple[int, str])],
            [("n", tuple[int, int])],
            [_BEFORE + "payload.n[1] may be string", _AFTER + "payload.n[1] may be integer"],
        ),
        ([_N], [("n", Annotated[int, msgspec.Meta(ge=1)])], [_BEFORE + "payload.n may break minimum 1"]),
        (
            [("n", Annotated[int, msgspec.Meta(ge=1, le=5)])],
            [("n", Annotated[int, msgspec.Meta(ge=2, le=6)])],
            [_BEFORE + "payload.n may break minimum 2", _AFTER + "payload.n may break maximum 5"],
        ),
        (
            [("n", Annotated[str, msgspec.Meta(pattern="^a")])],
            [("n", Annotated[str, msgspec.Meta(pattern="^b")])],
            [_BEFORE + "payload.n may break pattern '^b'", _AFTER + "payload.n may break pattern '^a'"],
        ),
        ([("a", Address)], [("a", dict[str, str])], [_AFTER + "payload.a.street may be missing"]),
    ],
)
def test_unreadable_change_is_breaking(earlier: list[Any], later: list[Any], changes: list[str]) -> None:
    """Within one version, each direction is reported with its path."""
    assert breaking_changes(document(earlier), document(later)) == changes


def test_new_field_breaks_an_event_that_forbids_unknown_fields() -> None:
    """Such an event cannot grow."""
    earlier, later = document([_N], strict=True), document([_N, ("m", int, 0)], strict=True)
    assert breaking_changes(earlier, later) == [_AFTER + "payload.m may be there"]


def test_new_version_needs_upcasters() -> None:
    """With them anything may change."""
    earlier = document([_N])
    assert breaking_changes(earlier, document([("m", str)], version=2, upcasts=1)) == []
    assert breaking_changes(earlier, document([("m", str)], version=3, upcasts=1)) == [
        "e: version 1 cannot be read any more, only 2, 3"
    ]
    assert breaking_changes(document([_N], version=2), document([_N])) == [
        "e: version 2 cannot be read any more, only 1"
    ]


def test_removed_or_moved_event_type_is_breaking() -> None:
    """A new event type is not."""
    earlier = document([_N])
    assert breaking_changes(earlier, document([_N], name="f")) == ["e: the event type is gone"]
    assert breaking_changes(earlier, document([_N], topic="u", aggregate="b")) == [
        "e: its topic was 't' and is 'u'",
        "e: its aggregate was 'a' and is 'b'",
    ]


def test_recursive_type_is_compared_once() -> None:
    """The depth of its payloads does not matter."""
    one, other = json_schema(SHOP), json_schema(SHOP)
    assert breaking_changes(one, other) == []
    other["$defs"]["store.opened.Opened"]["required"].append("parent")
    assert any("payload.parent may be missing" in change for change in breaking_changes(one, other))


@pytest.mark.parametrize(
    "given", [None, [], {}, {"events": {}}, {"events": {"e": {}}, "$defs": {}}, asyncapi(Registry())]
)
def test_other_documents_are_refused(given: Any) -> None:
    """The error says how to write the right one."""
    with pytest.raises(InvalidInput, match="postbus events export"):
        breaking_changes(given, document([_N]))


def test_document_can_be_written_as_json() -> None:
    """It has no value that JSON cannot express."""
    assert encode(json_schema(SHOP))[0].startswith(b'{"$schema"')
