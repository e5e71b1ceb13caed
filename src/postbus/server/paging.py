"""Pages: their limits, and the cursors by which callers go on."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from litestar.params import QueryParameter

from postbus._db.statements.pages import MOST_BYTES, Page, S
from postbus.errors import InvalidInput

__all__ = ["MOST_BYTES", "AfterId", "Cursor", "Limit", "decoded_cursor", "next_of"]

AfterId = Annotated[str, QueryParameter(pattern="^[0-9]{1,19}$", description="Only those with a higher id.")]
Limit = Annotated[
    int,
    QueryParameter(ge=1, le=1000, description="The largest number of entries. A page ends at 8 MiB as well: see next."),
]
Cursor = Annotated[
    str | None, QueryParameter(max_length=2000, description="Go on after a page: the text that it has as next.")
]


def next_of(page: Page[S], position: Callable[[S], Sequence[Any]], *, newest: bool = False) -> str | None:
    """The cursor of the next page. None if there is none."""
    if not page.more:
        return None
    encoded = msgspec.json.encode(list(position(page.found[0 if newest else -1])))
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def decoded_cursor(cursor: str | None, start: tuple[Any, ...]) -> tuple[Any, ...]:
    """The position in a cursor or, without one, the start. Both have the same types."""
    if cursor is None:
        return start
    try:
        encoded = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        position = tuple(msgspec.json.decode(encoded, type=list[int | str]))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        position = ()
    if [type(one) for one in position] != [type(one) for one in start] or not all(map(_is_storable, position)):
        raise InvalidInput("the cursor belongs to another list", remedy="give what a page of this list has as next")
    return position


def _is_storable(value: int | str) -> bool:
    return 0 <= value < 1 << 63 or value == -1 if isinstance(value, int) else "\0" not in value
