"""What all answers have in common, and those that belong to no subject."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta


class View(msgspec.Struct, kw_only=True):
    """The root of all answers."""

    WRITTEN: ClassVar[tuple[str, ...]] = ()
    """Fields that hold what publishers and handlers have written: null for callers without payloads."""


class Problem(View, kw_only=True):
    """What went wrong, as RFC 9457 has it, with the code that SQL and Python have for it too."""

    type: Annotated[str, Meta(examples=["urn:postbus:PB404"])]
    title: str
    status: int
    detail: str
    code: Annotated[str, Meta(examples=["PB404"])]
    remedy: str


class ListPage(View, kw_only=True):
    """A page of a list."""

    next: Annotated[str | None, Meta(description="Leads to the next page, as cursor. null: there is none.")] = None


class Count(View, kw_only=True):
    count: int
    dry_run: bool


class Welcome(msgspec.Struct):
    """What somebody finds who opens the address in a browser."""

    name: str
    docs: str
    openapi: str
    ready: str


class Health(View, kw_only=True):
    status: str


V = TypeVar("V", bound=msgspec.Struct)
_IDS = ("id", "subscription_id")


def view(kind: type[V], row: Mapping[str, Any]) -> V:
    """Make an answer of a row."""
    return msgspec.convert(as_json_values(row), kind)


def as_json_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ids to texts and durations to seconds."""
    return {name: str(value) if name in _IDS else _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [{key: _plain(one) for key, one in item.items()} if isinstance(item, dict) else item for item in value]
    return value
