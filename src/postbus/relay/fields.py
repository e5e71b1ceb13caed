"""Header fields: what a transport lets through of names and values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

HTTP = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]+")
"""Names of header fields in HTTP, and in NATS, which has them from there."""
_SAFE = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # all that can be seen but the percent sign


def encoded(headers: Mapping[str, str], names: re.Pattern[str]) -> dict[str, str]:
    """Headers as one line each: what is not ASCII, or cannot be seen, is percent-encoded. Refuses other names."""
    for name in headers:
        if not names.fullmatch(name):
            raise ValueError(f"header {name!r} has a name that the sink does not take")
    return {name: quote(value, safe=_SAFE) if _needs_it(value) else value for name, value in headers.items()}


def _needs_it(value: str) -> bool:
    return not value.isascii() or not value.isprintable() or "%" in value or value != value.strip()
