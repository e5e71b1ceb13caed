"""Header fields: the names and values that a transport accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

HTTP = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]+")
"""Names of header fields in HTTP, and in NATS, which uses the same rule."""
_SAFE = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # all visible characters except the percent sign


def encoded(headers: Mapping[str, str], names: re.Pattern[str]) -> dict[str, str]:
    """Percent-encode values that are not ASCII or not visible, so that each header is one line. Refuses other names."""
    for name in headers:
        if not names.fullmatch(name):
            raise ValueError(f"header {name!r} has a name that the sink does not take")
    return {name: quote(value, safe=_SAFE) if _needs_it(value) else value for name, value in headers.items()}


def _needs_it(value: str) -> bool:
    return not value.isascii() or not value.isprintable() or "%" in value or value != value.strip()
