"""Problems of groups, and their remedies: one source for the doctor, `groups check`, HTTP and programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec

from postbus.errors import InvalidOption
from postbus.options import Duration, as_interval

if TYPE_CHECKING:
    from postbus.results.health import SweepHealth

Row = Mapping[str, Any]
Level = Literal["warning", "info"]

_START = "start its worker"


class GroupFinding(msgspec.Struct, frozen=True):
    """Something that somebody should know of a group, or of a topic with groups."""

    kind: str
    level: Annotated[Level, msgspec.Meta(description="warning; info for what is as it should be.")]
    topic: str | None
    group: str | None
    text: str
    remedy: str


class HealthLimits(TypedDict, total=False):
    """The limits beyond which a group is in trouble. "off": no limit; None: the next less specific limit."""

    failed_share: float | str | None
    """The share of calls in the last five minutes that failed, if these are five or more (0.5)."""
    lag: int | str | None
    """Messages before a group (off)."""
    lag_age: Duration | None
    """The age of the oldest message before it (off)."""
    stopped_for: Duration | None
    """How long after a planned stop nobody has to work for it (24 hours)."""


def limits_json(limits: HealthLimits) -> dict[str, Any]:
    """Limits as the database takes them. What they mean is checked there."""
    if unknown := limits.keys() - HealthLimits.__annotations__.keys():
        raise InvalidOption(
            f"there is no health limit {min(unknown)!r}", remedy=f"there are {', '.join(HealthLimits.__annotations__)}"
        )
    return {name: _plain(name, value) for name, value in limits.items()}


def _plain(name: str, value: Any) -> Any:
    if value in (None, "off") or name in ("failed_share", "lag"):
        return value
    return as_interval(value, name=name)


def is_well(findings: Iterable[GroupFinding], sweeping: SweepHealth | None = None) -> bool:
    """Whether nobody need look: no finding is a warning, and sweeping keeps up, if that is asked about."""
    return all(one.level == "info" for one in findings) and (sweeping is None or sweeping.healthy)


def findings_of_group(row: Row) -> Iterator[GroupFinding]:
    topic, group = row["topic"], row["group_name"]

    def finding(kind: str, text: str, remedy: str, level: Level = "warning") -> GroupFinding:
        return GroupFinding(kind, level, topic, group, text, remedy)

    if not row["healthy"]:
        yield finding(row["problem_kind"], row["problem"], _remedy(row))
    elif row["stopped_at"] is not None:
        text = f"stopped as planned by {row['stopped_by']} at {_moment(row['stopped_at'])}"
        yield finding("stopped", text, f"{_START} when it is to go on", "info")
    elif row["waits_for_queue"]:
        yield finding("waits", "it waits until what is left in the queue of its topic is done", _remedy(row), "info")
    elif row["state"] == "PAUSED":
        text = f"it is paused, with {_counted(row['lag'])} before it"
        yield finding("paused", text, f"postbus groups resume {topic} {group}", "info")
    elif row["lag"] and not row["workers"] and row["is_silent"]:
        yield finding("idle", f"nobody works for it, and it has {_counted(row['lag'])} before it", f"{_START}, or pop")
    if row["lost"]:
        text = f"it lost {_counted(row['lost'])}, which were dropped before it had them, the last at "
        remedy = f"let it keep up, or keep more: see how long with postbus topics show {topic}; then "
        remedy += f"postbus topics set {topic} --max-retention LONGER --dead-retention LONGER"
        yield finding("lost", text + _moment(row["lost_at"]), remedy, "warning" if row["lost_lately"] else "info")
    if row["dead"]:
        remedy = f"postbus dead-letters list {topic} --group {group}; then redrive or purge them"
        yield finding("dead_letters", f"it gave up {_counted(row['dead'])}", remedy)


def _remedy(row: Row) -> str:
    topic, group = row["topic"], row["group_name"]
    kind = row["problem_kind"]
    if kind in ("dead", "stopped"):
        return f"{_START}; or end it: postbus groups cancel {topic} {group}"
    raised = f"postbus groups limits --topic {topic} --group {group} --lag-age DURATION"
    if "messages behind" in (row["problem"] or ""):
        raised = f"postbus groups limits --topic {topic} --group {group} --lag NUMBER"
    remedies = {
        "silent": "look whether its workers run and reach the database; or, if its consumers pop and do so seldom: "
        f"postbus groups heartbeat {group} {topic}, or postbus topics set {topic} --heartbeat-timeout LONGER",
        "failing": f"see why: postbus dead-letters list {topic} --group {group}, and the log of its workers",
        "sink": "see whether the sink runs and can be reached from the relay; messages wait, though not beyond the "
        f"topic's zombie_time and max_retention: postbus topics show {topic}",
        "behind": f"start more workers, or raise the limit: {raised}",
        "stuck": f"see what its handlers do: postbus groups show {topic} {group}",
    }
    hand_over = f"let its consumers do it, or a group: postbus topics migrate {topic} --to PUB_SUB --hand-over"
    return remedies.get(kind, hand_over)


def stuck_finding(row: Row) -> GroupFinding:
    text = f"up to {_counted(row['messages'])} not settled, the oldest since {_moment(row['oldest_at'])}"
    topic = row["topic"]
    remedy = (
        f"see who is behind: postbus groups list {topic}; "
        f"or let groups skip them: postbus groups force-complete {topic} --older-than 1h"
    )
    return GroupFinding("stuck_messages", "warning", topic, ", ".join(row["groups"]), text, remedy)


def inconsistency_finding(row: Row) -> GroupFinding:
    group = row["group_name"] or f"(subscription {row['subscription_id']})"
    remedy = "this is a bug of Postbus: report it with this text"
    return GroupFinding("inconsistent", "warning", row["topic"], group, row["explanation"], remedy)


def for_nobody_finding(row: Row) -> GroupFinding:
    since = _moment(row["oldest_at"])
    text = f"{_counted(row['messages'])} for nobody, the oldest since {since}: no group had to read them"
    remedy = f"postbus groups subscribe GROUP {row['topic']} --from beginning"
    return GroupFinding("for_nobody", "warning", row["topic"], None, text, remedy)


def _counted(count: int) -> str:
    return f"{count} message" if count == 1 else f"{count} messages"


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
