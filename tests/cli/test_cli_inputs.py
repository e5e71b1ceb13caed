"""How values are read."""

from __future__ import annotations

from typing import Any

import pytest

from postbus.cli._inputs import named_value


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("5000000", 5000000),
        ("0.5", 0.5),
        ("1E3", 1000.0),
        ("true", True),
        ('"5"', "5"),
        ("5s", "5s"),
        ("a=b", "a=b"),
        ("", ""),
        ("null", "null"),
        ("2030-01-31", "2030-01-31"),
        ("12:30:00", "12:30:00"),
        ("[1, 2]", [1, 2]),
        ("[" * 10_000, "[" * 10_000),
    ],
    ids=lambda value: str(value)[:12],
)
def test_value_of_an_option_is_read_as_toml(given: str, value: Any) -> None:
    """Numbers, truth values and texts may also be JSON. Anything else is a text as it stands."""
    assert named_value(f"name={given}", "--option", example="a=1") == ("name", value)
