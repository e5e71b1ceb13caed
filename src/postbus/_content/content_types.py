"""Content types: whether one may be published, and whether it means JSON or text."""

from __future__ import annotations

import re

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"

MAX_LENGTH = 255  # the limit of RabbitMQ

_USUAL = frozenset((JSON, TEXT, BYTES))
_TEXTS = frozenset(
    f"application/{name}" for name in ("xml", "yaml", "toml", "sql", "javascript", "x-www-form-urlencoded")
)
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_GIVEN = re.compile(rf"{_TOKEN}/{_TOKEN}(?: *;(?: *{_TOKEN}=(?:{_TOKEN}|{_QUOTED}))?)*")


def is_content_type(given: str) -> bool:
    """Whether a text is a content type that may be published, as the SQL function postbus.is_content_type decides."""
    return given in _USUAL or (len(given) <= MAX_LENGTH and _GIVEN.fullmatch(given) is not None)


def safe_content_type(stored: str) -> str:
    """A stored content type that may go into a header. Those of older messages may have several lines."""
    return stored if is_content_type(stored) else BYTES


def is_json(content_type: str) -> bool:
    """Whether a content type means JSON."""
    return content_type.startswith(JSON) or content_type.partition(";")[0].endswith("+json")


def is_text(content_type: str) -> bool:
    """Whether a content type means text in UTF-8. Without a charset, text is UTF-8."""
    kind, _, parameters = content_type.lower().partition(";")
    _, _, charset = parameters.partition("charset=")
    is_kind = kind.startswith("text/") or kind.strip() in _TEXTS or kind.strip().endswith(("+xml", "+yaml"))
    return is_kind and charset.strip(' "') in ("", "utf-8", "utf8")
