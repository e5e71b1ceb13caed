"""The common part of all answers, and answers that belong to no subject."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta


class View(msgspec.Struct, kw_only=True):
    """The root of all answers."""

    WRITTEN: ClassVar[tuple[str, ...]] = ()
    """Fields with text of publishers and handlers. They are null for callers without payloads."""


class Problem(View, kw_only=True):
    """Problem details of RFC 9457, with the same code as in SQL and Python."""

    type: Annotated[str, Meta(examples=["urn:postbus:PB404"])]
    title: str
    status: int
    detail: str
    code: Annotated[str, Meta(examples=["PB404"])]
    remedy: str


class ListPage(View, kw_only=True):
    """A page of a list."""

    next: Annotated[str | None, Meta(description="The cursor of the next page. Null if there is none.")] = None


class Count(View, kw_only=True):
    count: int
    dry_run: bool


class Welcome(msgspec.Struct):
    """The answer to somebody who opens the address in a browser."""

    name: str
    docs: str
    openapi: str
    ready: str


class Health(View, kw_only=True):
    status: str


V = TypeVar("V", bound=msgspec.Struct)
_IDS = ("id", "subscription_id")


def view(kind: type[V], result: msgspec.Struct, **more: Any) -> V:
    """Show a result as JSON has it: those fields that the answer has, ids as texts, and durations as seconds."""
    known = (name for name in kind.__struct_fields__ if name not in more)
    return kind(**{name: shown(name, getattr(result, name)) for name in known}, **more)


def shown(name: str, value: Any) -> Any:
    """The value of a field as JSON has it."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if name in _IDS else value
