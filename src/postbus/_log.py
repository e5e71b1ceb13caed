"""Log events: a stable name with fields, on the logger `postbus`."""

from __future__ import annotations

import logging
from typing import Any

_logger = logging.getLogger("postbus")


def event(level: int, name: str, **fields: Any) -> None:
    """Log an event. Its name and fields are on the record too, as `event` and `fields`."""
    if _logger.isEnabledFor(level):
        text = " ".join(f"{key}={value}" for key, value in fields.items())
        _logger.log(level, "%s %s", name, text, extra={"event": name, "fields": fields})
