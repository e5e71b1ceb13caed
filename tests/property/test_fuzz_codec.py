"""Payloads of any kind: reading or writing a bad one raises one kind of error."""

from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus import InvalidOption, InvalidPayload, PayloadNotDecodable
from postbus._content.codec import decoder_for, encode, encode_many
from postbus._content.content_types import BYTES, JSON, TEXT
from postbus.options import as_timedelta
from property.settings import examples


class Record(msgspec.Struct):
    x: int
    y: str | None = None


@dataclasses.dataclass
class Item:
    name: str
    price: float


class Model(pydantic.BaseModel):
    x: int
    name: str = ""


_TYPES: list[Any] = [Any, bytes, str, int, dict, list[int], dict[str, Any], Record, Item, Model, list[Model]]
_any_text = st.text(st.characters(exclude_categories=()))
_numbers = st.integers() | st.integers(-(2**300), 2**300) | st.floats(allow_nan=False, allow_infinity=False)
_values = st.recursive(
    st.none() | st.booleans() | _numbers | _any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_any_text, inner, max_size=4),
    max_leaves=15,
)
_PARTS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"1",
    b"1e999",
    b"-",
    b"null",
    b"NaN",
    b"\\ud800",
    b'"x"',
    b" ",
    b"\n",
]
_near_json = st.lists(st.sampled_from([*_PARTS, b"\xff", b"\0"]), max_size=12).map(b"".join)
_payloads = st.binary(max_size=30) | _near_json | _values.map(lambda value: encode(value)[0])
_content_types = st.sampled_from([JSON, TEXT, BYTES, "application/x+json; a=b", "", "text/", ";"]) | st.text(
    max_size=20
)


@examples(300)
@given(payload=_payloads, content_type=_content_types, wanted=st.sampled_from(_TYPES))
def test_stored_payload_is_decoded_or_refused(payload: bytes, content_type: str, wanted: Any) -> None:
    """A decoder raises no other error."""
    with suppress(PayloadNotDecodable):
        decoder_for(wanted)(payload, content_type)


@examples(200)
@given(
    payloads=st.lists(_payloads, min_size=1, max_size=5), content_type=_content_types, wanted=st.sampled_from(_TYPES)
)
def test_many_payloads_are_decoded_like_single_ones(payloads: list[bytes], content_type: str, wanted: Any) -> None:
    """The fast path for many returns the same, or refuses them too."""
    decode = decoder_for(wanted)
    try:
        each = [decode(payload, content_type) for payload in payloads]
    except PayloadNotDecodable:
        with pytest.raises(PayloadNotDecodable):
            decode.many(payloads, content_type)
    else:
        assert repr(decode.many(payloads, content_type)) == repr(each)


@examples(200)
@given(values=st.lists(_values | st.dictionaries(_any_text, _values, max_size=3), min_size=1, max_size=4))
def test_json_values_survive_encoding(values: list[Any]) -> None:
    """NUL characters, lone surrogates and large numbers do too, one at a time and many at once."""
    try:
        each = [encode(value) for value in values]
    except InvalidPayload:
        with pytest.raises(InvalidPayload):
            encode_many(values)
        return
    assert [decoder_for(Any)(*one) for one in each] == values
    payloads, content_types = encode_many(values)
    assert [decoder_for(Any)(*one) for one in zip(payloads, content_types, strict=True)] == values


_odd = st.sampled_from(
    [math.nan, math.inf, -math.inf, object(), print, 1j, {1, 2}, Record(1), Model(x=1), b"\xff", type]
)


_odd_names = st.text() | st.integers() | st.floats() | st.none()
_odd_values = st.recursive(
    _odd | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_odd_names, inner, max_size=3),
    max_leaves=5,
)


@examples(150)
@given(value=_odd_values)
def test_published_value_is_encoded_or_refused(value: Any) -> None:
    """Encoding raises no other error, and an encoded value can be decoded."""
    with suppress(InvalidPayload):
        decoder_for(Any)(*encode(value))
    with suppress(InvalidPayload):
        for payload, content_type in zip(*encode_many([value, value]), strict=True):
            decoder_for(Any)(payload, content_type)


_units = st.sampled_from(["", "s", "ms", "min", "minutes", "h", "d", "DAYS", "weeks", "µs", "m m"])
_durations = (
    st.builds(
        lambda number, gap, unit: f"{number}{gap}{unit}",
        st.integers() | st.floats(),
        st.sampled_from(["", " "]),
        _units,
    )
    | st.text(max_size=10)
    | st.integers()
    | st.floats()
    | st.timedeltas()
    | st.none()
    | st.booleans()
)


@examples(300)
@given(value=_durations)
def test_duration_is_accepted_or_refused(value: Any) -> None:
    """Whatever is given, the only error is InvalidOption."""
    with suppress(InvalidOption):
        assert isinstance(as_timedelta(value), timedelta)
