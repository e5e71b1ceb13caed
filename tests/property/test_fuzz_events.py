"""The comparison of two schemas allows exactly the changes that msgspec can read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postbus._content.codec import encode
from postbus.errors import PayloadNotDecodable
from postbus.events import Registry, breaking_changes, json_schema
from property.settings import examples


class Inner(msgspec.Struct):
    a: int
    b: str | None = None


class Wider(msgspec.Struct):
    a: float
    c: int = 0


Positive = Annotated[int, msgspec.Meta(ge=1)]
Short = Annotated[str, msgspec.Meta(max_length=2)]

TYPES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-5, 5),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=4),
    bool: st.booleans(),
    int | None: st.none() | st.integers(-5, 5),
    int | str: st.integers(-5, 5) | st.text(max_size=4),
    Literal["x", "y"]: st.sampled_from(["x", "y"]),
    Literal["x"]: st.just("x"),
    Positive: st.integers(1, 5),
    Short: st.text(max_size=2),
    list[int]: st.lists(st.integers(-5, 5), max_size=2),
    list[int | None]: st.lists(st.none() | st.integers(-5, 5), max_size=2),
    dict[str, int]: st.dictionaries(st.text(max_size=2), st.integers(-5, 5), max_size=2),
    dict[str, str]: st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=2), max_size=2),
    dict[str, Any]: st.dictionaries(st.sampled_from(["a", "b"]), st.none() | st.integers(-5, 5), max_size=2),
    tuple[int, str]: st.tuples(st.integers(-5, 5), st.text(max_size=2)),
    Inner: st.builds(Inner, a=st.integers(-5, 5), b=st.none() | st.text(max_size=2)),
    Inner | None: st.none() | st.builds(Inner, a=st.integers(-5, 5)),
    list[Inner]: st.lists(st.builds(Inner, a=st.integers(-5, 5)), max_size=2),
    Wider: st.builds(Wider, a=st.floats(-5, 5), c=st.integers(-5, 5)),
    Any: st.none() | st.integers(-5, 5) | st.text(max_size=2),
}
FIELDS = st.dictionaries(
    st.sampled_from(["p", "q"]), st.tuples(st.sampled_from(list(TYPES)), st.booleans()), min_size=1
)


def registered(fields: dict[str, tuple[Any, bool]], strict: bool) -> tuple[Registry, Any]:
    """Return a registry with one event, some of whose fields have a default."""
    ordered = sorted(fields.items(), key=lambda field: field[1][1])
    declared = [(name, kind, msgspec.UNSET) if is_optional else (name, kind) for name, (kind, is_optional) in ordered]
    payload = msgspec.defstruct("E", declared, forbid_unknown_fields=strict)
    registry = Registry()
    registry.event("e", topic="t", aggregate="a")(payload)
    return registry, payload


@examples(300)
@given(data=st.data(), earlier=FIELDS, later=FIELDS, strict=st.booleans())
def test_change_not_reported_as_breaking_can_be_read(
    data: st.DataObject, earlier: dict[str, Any], later: dict[str, Any], strict: bool
) -> None:
    """Whatever one class emits, the other decodes, unless the comparison says that it cannot."""
    (before, old), (after, new) = registered(earlier, strict), registered(later, strict)
    changes = breaking_changes(json_schema(before), json_schema(after))
    for reader, emitter, fields, told in (
        (after, old, earlier, "what was emitted before"),
        (before, new, later, "programs that know the earlier schema"),
    ):
        if any(told in change for change in changes):
            continue
        values = {
            name: data.draw(TYPES[kind])
            for name, (kind, is_optional) in fields.items()
            if not is_optional or data.draw(st.booleans())
        }
        written = encode(emitter(**values))
        try:
            reader.types["e"].decoder(*written)
        except PayloadNotDecodable as error:
            raise AssertionError(f"{written} of {fields} is not told as breaking: {changes}") from error


@examples(100)
@given(fields=FIELDS, strict=st.booleans())
def test_unchanged_schema_breaks_nothing(fields: dict[str, Any], strict: bool) -> None:
    """A schema is compatible with itself."""
    one, other = registered(fields, strict)[0], registered(fields, strict)[0]
    assert breaking_changes(json_schema(one), json_schema(other)) == []
