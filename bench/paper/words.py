"""Numbers, units and names in readable form."""

from __future__ import annotations

_UNITS = {
    "per_s": "messages per second",
    "deliveries_per_s": "deliveries per second",
    "mb_per_s": "MB per second",
    "bytes_per_message": "bytes per message",
    "ms": "milliseconds",
    "mb": "MB",
    "s": "seconds",
    "rows": "rows",
    "percent": "percent",
    "ratio": "ratio",
    "messages": "messages",
}
_PARAMETERS = {
    "batch": "messages per call",
    "groups": "groups",
    "lanes": "lanes",
    "backlog_messages": "messages waiting",
    "payload_bytes": "payload, bytes",
    "rate_per_s": "load, messages per second",
    "seconds": "seconds",
}


def unit(name: str) -> str:
    return _UNITS.get(name, name.replace("_", " "))


def parameter(name: str) -> str:
    return _PARAMETERS.get(name, name.replace("_", " "))


def plain(name: str) -> str:
    """A name of a figure as words."""
    return name.replace("_", " ").strip()


def title(text: str) -> str:
    return text[:1].upper() + text[1:]


def short(value: float) -> str:
    """A number for an axis: 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def full(value: float) -> str:
    """A number for a table: 12,345 or 0.0123."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
