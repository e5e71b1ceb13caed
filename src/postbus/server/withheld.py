"""Answers for callers without payloads: they have no text that publishers and handlers wrote."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from litestar.response import Stream
from msgspec import UNSET

from postbus._content.identity import EVENT_ID
from postbus.health import GroupFinding
from postbus.server.views.base import View
from postbus.server.views.groups import GroupView
from postbus.server.views.health import SweepHealthView
from postbus.server.views.messages import ObservedMessage

A = TypeVar("A")
_FAILED = " failed: "  # the error follows: see sweep_problems.sql


def without_payloads(answer: A) -> A:
    """A copy of an answer without the fields that its type, or a type in it, says were WRITTEN by others."""
    if isinstance(answer, list):
        return [without_payloads(one) for one in answer]  # type: ignore[return-value]
    if not isinstance(answer, msgspec.Struct):
        if answer is None or isinstance(answer, Stream):  # follow() withholds in each event
            return answer
        raise TypeError(f"{type(answer).__name__} cannot be shown without payloads")
    changes: dict[str, Any] = {
        name: without_payloads(value)
        for name in answer.__struct_fields__
        if isinstance(value := getattr(answer, name), msgspec.Struct) or _is_list_of_structs(value)
    }
    if isinstance(answer, View):
        changes |= {name: None for name in answer.WRITTEN if getattr(answer, name) is not UNSET}
    if isinstance(answer, ObservedMessage):
        changes |= _of_message(answer)
    elif isinstance(answer, GroupView) and answer.sink_error and answer.sink_error in (answer.problem or ""):
        changes["problem"] = f"its sink {answer.sink} is away"
    elif isinstance(answer, GroupFinding) and answer.kind == "sink":
        changes["text"] = "its sink is away"
    elif isinstance(answer, SweepHealthView) and _FAILED in (answer.reason or ""):
        changes["reason"] = "a job of sweeping has failed"
    return msgspec.structs.replace(answer, **changes)


def _of_message(answer: ObservedMessage) -> dict[str, Any]:
    changes: dict[str, Any] = {"payload": UNSET, "text": UNSET, "base64": UNSET, "headers": {}, "withheld": True}
    if EVENT_ID in answer.headers:
        changes["event_id"] = None
    return changes


def _is_list_of_structs(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, msgspec.Struct) for one in value)
