"""Statements for the health of groups: for a store, and for the doctor, who has only a connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from postbus._db.rows import as_struct
from postbus.health import (
    GroupFinding,
    findings_of_group,
    for_nobody_finding,
    inconsistency_finding,
    stuck_finding,
)
from postbus.results.health import GroupHealthLimits

Fetch = Callable[..., Awaitable[Sequence[Mapping[str, Any]]]]

_GROUPS = """
    select g.*, g.lost_at > clock_timestamp() - interval '1 day' as lost_lately,
           g.seen_at <= clock_timestamp() - postbus.alive_for() as is_silent
      from postbus.groups g where g.state <> 'CANCELLED' and ($1::text[] is null or g.topic like any ($1))
     order by g.topic, g.group_name
"""
_VISIBLE = "where $1::text[] is null or topic like any ($1)"


async def look_at_groups(
    fetch: Fetch, stuck_after: timedelta, topics: Sequence[str] | None = None
) -> list[GroupFinding]:
    """Find problems of groups (warnings), and unusual states. `topics`: patterns of LIKE; None for all."""
    found = [finding for row in await fetch(_GROUPS, topics) for finding in findings_of_group(row)]
    stuck = await fetch(f"select * from postbus.stuck_messages($2) {_VISIBLE}", topics, stuck_after)
    broken = await fetch(f"select * from postbus.inconsistencies() {_VISIBLE}", topics)
    unwanted = await fetch(f"select * from postbus.zero_subscription_messages() {_VISIBLE}", topics)
    return [
        *found,
        *map(stuck_finding, stuck),
        *map(inconsistency_finding, broken),
        *map(for_nobody_finding, unwanted),
    ]


def as_limits(row: Mapping[str, Any]) -> GroupHealthLimits:
    """Limits as people set them; None where there is none."""
    plain = {name: None if value == float("inf") else value for name, value in row.items()}
    seconds = {name: plain.pop(f"{given}_seconds") for name, given in (("lag_age", "lag"), ("stopped_for", "stopped"))}
    plain["lag"] = None if plain["lag"] is None else int(plain["lag"])
    ages = {name: None if one is None else timedelta(seconds=one) for name, one in seconds.items()}
    return as_struct(GroupHealthLimits, plain | ages)
