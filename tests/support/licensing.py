"""A registry for tests."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from postbus.events import Registry

registry = Registry()


@registry.event("license_status_changed", topic="licenses", aggregate="license", version=2)
class LicenseStatusChanged(msgspec.Struct):
    license_id: int
    status: Literal["pending", "verified", "rejected"]


@registry.upcast("license_status_changed", from_version=1)
def renamed(payload: dict[str, Any]) -> dict[str, Any]:
    return {"license_id": payload["id"], "status": payload["status"]}


@registry.event("license_expired", topic="licenses", aggregate="license")
class LicenseExpired(msgspec.Struct):
    license_id: int


@registry.event("license_printed", topic="licenses", aggregate="license")
class LicensePrinted(msgspec.Struct):
    pages: int


def headers(event_type: str = "license_status_changed", version: int = 2, **others: str) -> dict[str, str]:
    """Return the event headers of a message that is published by hand."""
    told = {"event-type": event_type, "event-version": str(version), "aggregate-type": "license", "aggregate-id": "1"}
    return {**told, **others}
