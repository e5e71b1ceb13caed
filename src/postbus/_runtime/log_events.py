"""Log events: a stable name with fields, on the logger `postbus`."""

from __future__ import annotations

import logging
from typing import Any

from postbus._runtime.visible_text import visible

_logger = logging.getLogger("postbus")


def event(level: int, name: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
    """Log an event. The record has its name and fields also as attributes, `event` and `fields`.

    The text is one line, whatever the fields contain.
    """
    if _logger.isEnabledFor(level):
        text = " ".join(f"{key}={visible(str(value))}" for key, value in fields.items())
        _logger.log(level, "%s %s", name, text, exc_info=exc_info, extra={"event": name, "fields": fields})
