"""Answers for callers that are limited to some groups: nothing of any other group, and nothing that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from postbus.errors import MessageNotFound
from postbus.health import GroupFinding
from postbus.server.callers import Caller

_Row = dict[str, Any]


def of_topic(caller: Caller, row: _Row) -> _Row:
    """A topic, without counts over its groups."""
    if caller.has_all_groups:
        return row
    return row | {"groups": None} | ({"dead": None} if row["semantics"] == "PUB_SUB" else {})


def of_message(caller: Caller, story: _Row) -> _Row:
    """The story of a message, as the caller's groups have it. Where only others keep a copy, it is not there."""
    if caller.has_all_groups or "deliveries" not in story:
        return story
    deliveries = [one for one in story["deliveries"] if caller.sees_group(one["group_name"])]
    if not (story["retained"] or deliveries):
        raise no_message(story["topic"], story["id"])
    kept = {name: value for name, value in story.items() if name not in ("status", "settled_at")}
    return kept | {
        "deliveries": deliveries,
        "required": [one for one in story["required"] if caller.sees_group(one)],
        "completed": [one for one in story["completed"] if caller.sees_group(one)],
    }


def no_message(topic: str, message_id: int) -> MessageNotFound:
    """The same words as of a message that never was."""
    return MessageNotFound(
        f"topic '{topic}' has no message {message_id}",
        remedy="it was dropped when its retention had passed, or never was there",
    )


def of_findings(caller: Caller, findings: list[GroupFinding]) -> Iterator[GroupFinding]:
    """What is wrong with the caller's groups."""
    for one in findings:
        if not caller.sees(one.topic):
            continue
        if caller.has_all_groups:
            yield one
        elif one.group is not None:
            groups = one.group.split(", ")
            seen = [name for name in groups if caller.sees_group(name)]
            if seen == groups:
                yield one
            elif seen:  # its figures are those of all of them
                text = "it has messages that were not settled for long"
                yield msgspec.structs.replace(one, group=", ".join(seen), text=text)
