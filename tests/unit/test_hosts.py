"""A DSN with several hosts is split into one for each."""

from __future__ import annotations

import pytest

from postbus._db.connect import hosts_of


@pytest.mark.parametrize(
    ("dsn", "each"),
    [
        ("postgresql://u@h/d", ["postgresql://u@h/d"]),
        ("postgresql:///d?host=/run&port=5433", ["postgresql:///d?host=/run&port=5433"]),
        (
            "postgresql://u:p%2C@h1:1,h2:2/d?target_session_attrs=read-write",
            [
                "postgresql://u:p%2C@h1:1/d?target_session_attrs=read-write",
                "postgresql://u:p%2C@h2:2/d?target_session_attrs=read-write",
            ],
        ),
        ("postgresql://[::1]:1,[::2]/d", ["postgresql://[::1]:1/d", "postgresql://[::2]/d"]),
        (
            "postgresql://u@/d?host=h1,/run/a%20b&port=1,2&sslmode=disable",
            [
                "postgresql://u@/d?sslmode=disable&host=h1&port=1",
                "postgresql://u@/d?sslmode=disable&host=/run/a%20b&port=2",
            ],
        ),
        (
            "postgresql:///d?host=h1,h2&port=7",
            ["postgresql:///d?host=h1&port=7", "postgresql:///d?host=h2&port=7"],
        ),
        ("postgresql:///d?host=h1,h2", ["postgresql:///d?host=h1", "postgresql:///d?host=h2"]),
    ],
)
def test_each_host_has_its_dsn(dsn: str, each: list[str]) -> None:
    """Everything but host and port stays the same."""
    assert hosts_of(dsn) == each
