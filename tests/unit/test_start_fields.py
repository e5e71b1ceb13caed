"""Positions at which groups start, as fields."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from postbus.errors import InvalidOption
from postbus.start import Start, StartKind

_MOMENT = datetime(2030, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize("start", [Start.NOW, Start.BEGINNING, Start.at(_MOMENT), Start.from_message(2**62)])
def test_fields_of_a_start_give_the_same_start(start: Start) -> None:
    """The id passes as a text, because it may not fit into a number of JSON."""
    fields = start.as_fields()

    message_id = fields["message_id"]
    assert message_id is None or isinstance(message_id, str)
    back = Start.from_kind(fields["start"], fields["timestamp"], None if message_id is None else int(message_id))
    assert back == start


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        ("FROM_NOW", {"timestamp": _MOMENT}, "start 'FROM_NOW' has a timestamp"),
        ("FROM_BEGINNING", {"message_id": 7}, "start 'FROM_BEGINNING' has a message_id"),
        ("FROM_TIMESTAMP", {}, "start 'FROM_TIMESTAMP' has no timestamp"),
        ("FROM_MESSAGE_ID", {"timestamp": _MOMENT}, "start 'FROM_MESSAGE_ID' has a timestamp"),
        ("FROM_MESSAGE_ID", {}, "start 'FROM_MESSAGE_ID' has no message_id"),
    ],
)
def test_fields_that_do_not_fit_are_refused(kind: StartKind, fields: dict[str, Any], problem: str) -> None:
    """The error names the start and the field."""
    with pytest.raises(InvalidOption, match=problem) as caught:
        Start.from_kind(kind, **fields)
    assert caught.value.remedy.startswith("give a ")
