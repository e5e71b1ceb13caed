"""Rows of the database as results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

S = TypeVar("S", bound=msgspec.Struct)
Row = Mapping[str, Any]


def as_struct(kind: type[S], row: Row) -> S:
    """Make a result of a row. Columns that the type does not have are left out."""
    objects = _objects(kind)
    return kind(**{name: _value(row[name], objects.get(name)) for name in kind.__struct_fields__})


def as_structs(kind: type[S], rows: Iterable[Row]) -> list[S]:
    return [as_struct(kind, row) for row in rows]


@cache
def _objects(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The fields that are JSON objects, which the driver passes on as texts, each with the text of a null."""
    found: dict[str, str] = {}
    for name, hint in get_type_hints(kind).items():
        if get_origin(hint) is dict:
            found[name] = "{}"
        elif any(get_origin(one) is dict for one in get_args(hint)):
            found[name] = "null"
    return found


def _value(value: Any, object_if_null: str | None) -> Any:
    if object_if_null is not None:
        return json.loads(value or object_if_null)
    return float(value) if isinstance(value, Decimal) else value
