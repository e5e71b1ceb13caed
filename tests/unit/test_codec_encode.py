"""How payloads are encoded, and which are refused."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import json
import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

from postbus import InvalidPayload, PayloadNotSerializable, PayloadTooDeep
from postbus._content.codec import MAX_DEPTH, encode, encode_lines, encode_many
from postbus._content.content_types import BYTES, JSON, TEXT
from support.naming import steady


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


class Record(msgspec.Struct):
    x: Any


class Model(pydantic.BaseModel):
    x: Any
    at: datetime | None = None


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("payload", "encoded", "content_type"),
    [
        (b"\0\xff", b"\0\xff", BYTES),
        (bytearray(b"ab"), b"ab", BYTES),
        (memoryview(b"abcd")[::2], b"ac", BYTES),
        ("grüße\0", "grüße\0".encode(), TEXT),
        ("", b"", TEXT),
        ({"a": [1, None, True, 1.5, "x"]}, b'{"a":[1,null,true,1.5,"x"]}', JSON),
        ([], b"[]", JSON),
        (None, b"null", JSON),
        (0, b"0", JSON),
        (2**200, str(2**200).encode(), JSON),
        (-(2**200), str(-(2**200)).encode(), JSON),
        (1e308, b"1e308", JSON),
        ("null", b"null", TEXT),
        (["null"], b'["null"]', JSON),
        (["\0"], b'["\\u0000"]', JSON),
        (["\ud800"], b'["\\ud800"]', JSON),
        ({"\udfff": {1: "ü"}}, b'{"\\udfff":{"1":"\\u00fc"}}', JSON),
        (Point(1, 2), b'{"x":1,"y":2}', JSON),
        (Record("r"), b'{"x":"r"}', JSON),
        (Model(x=1, at=datetime(2030, 1, 1, tzinfo=UTC)), b'{"x":1,"at":"2030-01-01T00:00:00Z"}', JSON),
        ([Model(x=Model(x=1))], b'[{"x":{"x":1,"at":null},"at":null}]', JSON),
        (Point(Model(x=1)), b'{"x":{"x":1,"at":null},"y":null}', JSON),
        ({1: "int", 2.5: "float"}, b'{"1":"int","2.5":"float"}', JSON),
        ({"u": uuid.UUID(int=1)}, b'{"u":"00000000-0000-0000-0000-000000000001"}', JSON),
        ([decimal.Decimal("1.10"), Colour.RED, {1}], b'["1.10","red",[1]]', JSON),
        ({"nan": "nan", "inf": None}, b'{"nan":"nan","inf":null}', JSON),
    ],
    ids=steady,
)
def test_payloads_are_encoded_by_their_type(payload: Any, encoded: bytes, content_type: str) -> None:
    """Bytes stay as they are, a text is UTF-8, and everything else is JSON."""
    assert encode(payload) == (encoded, content_type)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda bad: bad,
        lambda bad: [1, [bad]],
        lambda bad: {"a": {"b": bad}},
        lambda bad: {bad: "key"},
        lambda bad: (None, bad),
        lambda bad: Point(1.0, bad),
        lambda bad: Record([bad]),
        lambda bad: Model(x=bad),
        lambda bad: [Model(x=[bad])],
        lambda bad: {"\ud800": bad},
    ],
    ids=["value", "list", "dict", "key", "tuple", "dataclass", "struct", "pydantic", "models", "surrogate"],
)
def test_nan_and_infinity_are_refused(wrap: Any, bad: float) -> None:
    """They are not JSON, at any depth."""
    with pytest.raises(PayloadNotSerializable, match="which JSON cannot express") as refused:
        encode(wrap(bad))

    assert str(bad) in refused.value.message
    assert refused.value.remedy == "publish null or a string instead"


class _Fails(pydantic.BaseModel):
    x: int

    @pydantic.field_serializer("x")
    def fail(self, value: int) -> int:
        raise ZeroDivisionError(value)


@pytest.mark.parametrize(
    "payload",
    [
        object(),
        [object()],
        {"a": {"b": lambda: None}},
        Point(object()),
        Model(x=object()),
        Model(x=b"\xff"),
        {(1, 2): "tuple"},
        {None: "none"},
        {"\ud800": object()},
        _Fails(x=1),
        1j,
    ],
    ids=steady,
)
def test_objects_without_a_json_form_are_refused(payload: Any) -> None:
    """The error has a hint at what can be published."""
    with pytest.raises(PayloadNotSerializable, match="the payload cannot be written as JSON: ") as refused:
        encode(payload)

    assert refused.value.code == "PB413"
    assert "publish dicts" in refused.value.remedy
    assert isinstance(refused.value, InvalidPayload)


def _nested(depth: int, *, surrogate: bool = False) -> Any:
    value: Any = "\ud800" if surrogate else 1
    for level in range(depth):
        value = [value] if level % 2 else {'[{"': value}
    return value


@pytest.mark.parametrize("surrogate", [False, True])
def test_nesting_is_limited(surrogate: bool) -> None:
    """The maximal depth is accepted and one more level is not; brackets within texts do not count."""
    encode(_nested(MAX_DEPTH, surrogate=surrogate))
    for depth in (MAX_DEPTH + 1, 500, 100_000):
        with pytest.raises(PayloadTooDeep, match=f"deeper than {MAX_DEPTH} levels") as refused:
            encode(_nested(depth, surrogate=surrogate))
    assert refused.value.code == "PB412"


def test_wide_payload_is_not_deep() -> None:
    """Many brackets next to one another are no nesting."""
    payload = [{"a": ["\\", '\\"[', "]]]{{{"]}] * 200

    assert json.loads(encode(payload)[0]) == payload


def test_payload_that_contains_itself_is_refused() -> None:
    """The error says that a list or dict within itself has no end."""
    endless: list[Any] = []
    endless.append({"again": endless})

    with pytest.raises(PayloadTooDeep, match="contains itself"):
        encode(endless)


def test_model_that_contains_itself_is_refused() -> None:
    """A model of pydantic within itself is refused too."""
    model = Model(x=None)
    model.x = [model]

    with pytest.raises(InvalidPayload):
        encode(model)


DEEP: Any = {}
for _ in range(MAX_DEPTH):
    DEEP = {"x": DEEP}


@pytest.mark.parametrize(
    "others",
    [
        [{"x": "a\nb"}],
        [{"x": [[1], {"y": [2]}]}] * 300,
        [{"x": ["[{" * 300]}],
    ],
    ids=["line breaks", "many brackets", "long texts of brackets"],
)
def test_many_dicts_are_encoded_like_single_ones(others: list[Any]) -> None:
    """The lines equal the single payloads, however many brackets they have."""
    payloads = [{"x": 1}, *others, {"x": 2}]
    lines = encode_lines(payloads)
    expected = [encode(payload)[0] for payload in payloads]

    assert lines is None or lines.split(b"\n") == [*expected, b""]
    assert encode_many(payloads) == (expected, [JSON] * len(payloads))
    assert (lines is None) == any("[{[{" in str(one) for one in others)


def test_payload_with_line_breaks_is_encoded_alone() -> None:
    """JSON that was written elsewhere may contain line breaks."""
    payloads = [{"x": msgspec.Raw(b"[1,\n2]")}, {"x": 1}]

    assert encode_lines(payloads) is None
    assert encode_many(payloads)[0] == [b'{"x":[1,\n2]}', b'{"x":1}']


@pytest.mark.parametrize("bad", [{"x": float("nan")}, {"x": {float("nan"): 1}}, {float("-inf"): 1}, DEEP])
def test_bad_payload_is_found_among_many(bad: Any) -> None:
    """It may be NaN as a value or a key, or too deep."""
    with pytest.raises(InvalidPayload):
        encode_many([{"x": 1}, bad, {"x": 2}])
