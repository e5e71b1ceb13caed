"""Addresses as errors and operators may see them: without passwords, wherever these stand."""

from __future__ import annotations

import pytest

from postbus._db.addresses import public_address

UNREADABLE = "(cannot be read)"


@pytest.mark.parametrize(
    ("address", "shown", "with_user"),
    [
        ("postgresql://app:pw@h1:1,h2:2/db", "postgresql://h1:1,h2:2/db", "postgresql://app@h1:1,h2:2/db"),
        ("postgresql://h/db?user=app&password=pw", "postgresql://h/db", "postgresql://h/db?user=app"),
        ("postgresql://h/db?Pass%77ord=pw&sslmode=require", "postgresql://h/db", "postgresql://h/db?sslmode=require"),
        ("postgresql://app@/db?host=/run&sslpassword=pw", "postgresql:///db", "postgresql://app@/db?host=/run"),
        ("https://example.com/hook?token=pw#pw", "https://example.com/hook", "https://example.com/hook?token=pw"),
        ("ownsink://", "ownsink://", "ownsink://"),
        ("jwks.json", "jwks.json", "jwks.json"),
        ("amqp://app:p/w@h", UNREADABLE, UNREADABLE),
        ("amqp://app:pw@h:0", UNREADABLE, UNREADABLE),
        ("app:pw@h", UNREADABLE, UNREADABLE),
    ],
)
def test_address_is_shown_without_password(address: str, shown: str, with_user: str) -> None:
    """Neither the login nor a parameter shows a password; the user and other parameters stay on request."""
    assert (public_address(address), public_address(address, with_user=True)) == (shown, with_user)
