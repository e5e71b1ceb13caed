"""Log events on stderr, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

from postbus._runtime.visible_text import visible, visible_lines


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure_logging(level: str, form: LogFormat) -> None:
    """Let all loggers write to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form is LogFormat.JSON else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _Text(logging.Formatter):
    """One line per record. Its traceback follows, indented, so that no line of an error looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{self.formatTime(record)} {record.levelname:<7} {visible(record.getMessage())}"]
        if record.exc_info:
            lines += (f"    {line}" for line in visible_lines(self.formatException(record.exc_info)))
        return "\n".join(lines)


class _Json(logging.Formatter):
    """One object per line: an event's name and fields where the record has them, else its message."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if (event := getattr(record, "event", None)) is not None:
            entry |= {"event": event} | getattr(record, "fields", {})
        else:
            entry["message"] = record.getMessage()
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
