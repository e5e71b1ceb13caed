"""Decoding stored payloads for handlers."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus import PayloadNotDecodable
from postbus._content.codec import decoder_for, encode
from postbus._content.content_types import BYTES, JSON, TEXT
from support.naming import steady


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Item:
    name: str
    price: int


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    at: datetime
    items: list[Item]
    colours: dict[int, Colour]


class Record(msgspec.Struct):
    x: int
    y: str | None = None


class Model(pydantic.BaseModel):
    x: int = pydantic.Field(alias="xAxis")
    name: str = ""


class Holder(msgspec.Struct):
    model: Model


ORDER = Order(uuid.UUID(int=7), datetime(2030, 1, 1, tzinfo=UTC), [Item("a", 1)], {5: Colour.RED})

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
_any_text = st.text(st.characters(exclude_categories=()))


@given(_json)
def test_json_values_survive_encoding(value: Any) -> None:
    """A value that JSON can express is the same after encoding and decoding."""
    if isinstance(value, str):
        value = [value]
    assert decoder_for(Any)(*encode(value)) == value


@given(st.dictionaries(_any_text, _any_text))
def test_lone_surrogates_survive_encoding(value: dict[str, str]) -> None:
    """Characters that UTF-8 cannot hold are stored as escapes."""
    assert decoder_for(Any)(*encode(value)) == value
    assert decoder_for(dict[str, str])(*encode(value)) == value


@given(_any_text)
def test_text_survives_encoding(value: str) -> None:
    """A text is a text for a handler that asks for str, or for nothing in particular."""
    assert decoder_for(str)(*encode(value)) == value
    assert decoder_for(Any)(*encode(value)) == value


@given(st.binary())
def test_bytes_survive_encoding(value: bytes) -> None:
    """Bytes are never changed."""
    assert decoder_for(bytes)(*encode(value)) == value
    assert decoder_for(Any)(*encode(value)) == value


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (Order, ORDER),
        (list[Order], [ORDER, ORDER]),
        (Record, Record(1, "y")),
        (Record | None, None),
        (Model, Model(xAxis=1, name="n")),
        (list[Model], [Model(xAxis=1), Model(xAxis=2, name="\ud800")]),
        (Model, Model(xAxis=1, name="\ud800")),
        (Holder, Holder(Model(xAxis=3))),
        (dict[str, Any], {"a": 1}),
        (dict[int, str], {1: "\ud800"}),
        (Sequence[int], [1, 2]),
        (int, 2**200),
        (object, {"a": 1}),
    ],
    ids=steady,
)
def test_typed_payloads_keep_their_types(wanted: Any, value: Any) -> None:
    """A handler's annotation decides the type of its payload."""
    assert decoder_for(wanted)(*encode(value)) == value


class _Picky(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        raise KeyError("picky")


class _PickyModel(pydantic.BaseModel):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def check(cls, value: int) -> int:
        raise KeyError("picky")


@pytest.mark.parametrize(
    ("wanted", "payload", "content_type", "why"),
    [
        (Any, b"{", JSON, "not JSON"),
        (Any, b"", JSON, "not JSON"),
        (Any, b"NaN", JSON, "not JSON"),
        (Any, b'["\\ud800", Infinity]', JSON, "not JSON"),
        (Any, b'["\\ud800", 1e400]', JSON, "not JSON"),
        (Any, b"1e400", JSON, "out of range"),
        (Any, b'"\xff"', JSON, "UTF-8"),
        (Any, b"\xff", TEXT, "UTF-8"),
        (Any, b"[" * 100_000, JSON, "Recursion"),
        (str, b"\xff", BYTES, "UTF-8"),
        (list, b"[" * 100_000, JSON, "Recursion"),
        (dict, b"1", JSON, "Expected `object`, got `int`"),
        (dict, b"\xff\xfe", BYTES, "not JSON"),
        (int, b'"\\ud800"', JSON, "surrogates"),
        (Order, b"{}", JSON, "missing required field `id`"),
        (Record, b'{"x": "1"}', JSON, r"\$.x"),
        (Model, b'{"xAxis": "a"}', JSON, "valid integer"),
        (Model, b'{"xAxis": "\\ud800"}', JSON, "xAxis"),
        (Model, b"{", JSON, "Invalid JSON"),
        (list[Model], b'[{"xAxis": "a"}]', JSON, "valid integer"),
        (_Picky, b'{"x": 1}', JSON, "KeyError: 'picky'"),
        (_PickyModel, b'{"x": 1}', JSON, "KeyError: 'picky'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_undecodable_payload_raises_one_kind_of_error(wanted: Any, payload: bytes, content_type: str, why: str) -> None:
    """The error says what does not fit."""
    with pytest.raises(PayloadNotDecodable, match=why) as refused:
        decoder_for(wanted)(payload, content_type)

    assert refused.value.code == "PB422"


class _Plain:
    pass


@pytest.mark.parametrize("wanted", [_Plain, list[_Plain], dict[str, complex], Callable[[], None], 5, int | _Plain])
def test_undecodable_types_are_refused_at_once(wanted: Any) -> None:
    """A type that no payload can become is refused at registration, not at the first message."""
    with pytest.raises(TypeError):
        decoder_for(wanted)


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "application/x+json"])
def test_json_is_recognised_by_its_content_type(content_type: str) -> None:
    """Handlers without an annotation get every kind of JSON decoded."""
    assert decoder_for(Any)(b'{"a":1}', content_type) == {"a": 1}
    assert decoder_for(Any)(b'{"a":1}', "application/x-other") == b'{"a":1}'
