"""Reports of benchmarks, made up: what a page is made of."""

from __future__ import annotations

from typing import Any


def report(scenario: str, figures: dict[str, float], **more: Any) -> dict[str, Any]:
    """What `postbus bench SCENARIO --json` prints."""
    return {
        "scenario": scenario,
        "machine": {"cores": 2, "cpu": "a cpu", "load_at_start": 0.5, "measured_at": "2026-01-02T03:04:05+00:00"},
        "settings": {"postgresql_version": "18", "took_seconds": 12.5},
        "figures": figures,
        "checks": [],
        **more,
    }
