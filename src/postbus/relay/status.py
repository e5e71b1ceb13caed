"""The status of relays: unsent messages and their age, dead letters, and alerts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from postbus.admin import Admin
from postbus.relay.plan import as_retention, short_retention
from postbus.relay.settings import Alerts, Route
from postbus.results import GroupInfo, SinkAway, TopicInfo


@dataclass
class RelayStatus:
    """The status of one relay."""

    topic: str
    group: str | None
    """None for a QUEUE, which has no groups."""
    state: str
    backlog: int
    """The number of unsent messages."""
    oldest: timedelta | None
    """The age of the oldest of them."""
    deferred: int
    """The number of messages that failed and are tried again, or wait behind one of these."""
    dead: int
    """The number of dead letters."""
    workers: int
    """The number of live processes that work for it."""
    alerts: list[str] = field(default_factory=list)
    sink: str | None = None
    """The address of its sink if that is away …"""
    away_since: datetime | None = None
    """… the time since when it is …"""
    error: str | None = None
    """… and the last error."""
    note: str = ""
    """Information that is no alert."""


async def statuses(admin: Admin, routes: Sequence[Route], alerts: Alerts) -> list[RelayStatus]:
    """The status of each route; without routes, of all groups whose names begin with relay-."""
    topics = {one.name: one for one in await admin.topics()}
    groups = await admin.groups()
    away = await admin.sinks_away()
    workers = [one for one in await admin.workers() if one.is_alive]
    if not routes:
        found = [_of_group(one) for one in groups if one.group_name.startswith("relay-")]
    else:
        found = [_of_route(route, topics.get(route.topic), groups) for route in routes]
    for one in found:
        if one.state == "QUEUE":
            one.workers = sum(one.topic in worker.topics for worker in workers)
        if one.state in ("QUEUE", "ACTIVE") and not one.workers and not one.note:
            one.alerts.append(f"no process works for it: {_how_to_run(one.topic, one.group)}")
        _note_sink(one, away)
        one.alerts += _alerts(one, alerts)
    return found


def _of_route(route: Route, topic: TopicInfo | None, groups: Sequence[GroupInfo]) -> RelayStatus:
    if topic is None:
        create = f"postbus topics create {route.topic} --semantics PUB_SUB --retention {as_retention(route.retention)}"
        why = f"there is no such topic; see postbus topics list, or create it: {create}"
        return RelayStatus(route.topic, route.group, "MISSING", 0, None, 0, 0, 0, [why])
    status = _of_queue(topic) if topic.semantics == "QUEUE" else _of_log(route, groups)
    if (short := short_retention(topic.retention, route.retention)) is not None:
        status.alerts.append(f"{short}: postbus topics set {route.topic} --retention {as_retention(route.retention)}")
    return status


def _of_queue(topic: TopicInfo) -> RelayStatus:
    oldest = None if topic.oldest_at is None else datetime.now(UTC) - topic.oldest_at
    return RelayStatus(topic.name, None, "QUEUE", topic.in_queue, oldest, topic.delayed, topic.dead, 0)


def _of_log(route: Route, groups: Sequence[GroupInfo]) -> RelayStatus:
    for one in groups:
        if (one.topic, one.group_name) == (route.topic, route.group):
            return _of_group(one)
    why = f"it has never run: {_how_to_run(route.topic, route.group)}"
    known = [one.group_name for one in groups if one.topic == route.topic]
    if others := sorted(name for name in known if name.startswith("relay-")):
        why = f"it has never run, but there is {' and '.join(others)}: name that by --group"
    return RelayStatus(route.topic, route.group, "MISSING", 0, None, 0, 0, 0, [why])


def _how_to_run(topic: str, group: str | None) -> str:
    """The command, with the group: another group would start over, and leave this one's messages unsent."""
    named = f" --group {group}" if group else ""
    return f"postbus relay run --topic {topic}{named} --sink URL, or --config FILE"


def _of_group(row: GroupInfo) -> RelayStatus:
    seconds = row.lag_seconds
    status = RelayStatus(
        topic=row.topic,
        group=row.group_name,
        state=row.state,
        backlog=row.pending or 0,
        oldest=None if seconds is None else timedelta(seconds=seconds),
        deferred=row.retrying + row.parked,
        dead=row.dead,
        workers=len(row.workers),
    )
    if row.stopped_at is not None and row.healthy:
        status.note = f"no process works for it: stopped as planned by {row.stopped_by} at "
        status.note += f"{row.stopped_at:%Y-%m-%d %H:%M:%S}"
    elif row.stopped_at is not None:
        status.alerts.append(row.problem or "")
    elif row.state == "DEAD":
        status.alerts.append("it is DEAD: unsent messages are kept only for the topic's dead_retention and retention")
    if row.lost:
        status.alerts.append(f"{row.lost} messages were dropped before they were sent")
    return status


def _note_sink(status: RelayStatus, away: Sequence[SinkAway]) -> None:
    for one in away:
        if (one.topic, one.group_name) == (status.topic, status.group) and status.sink is None:
            status.sink, status.away_since, status.error = one.sink, one.since, one.error
            status.alerts.append(f"its sink {one.sink} has been away since {one.since:%Y-%m-%d %H:%M:%S}: {one.error}")


def _alerts(status: RelayStatus, alerts: Alerts) -> list[str]:
    found = []
    if status.backlog > alerts.max_backlog:
        found.append(f"{status.backlog} messages are not sent (max_backlog {alerts.max_backlog})")
    if status.oldest is not None and status.oldest > alerts.max_age:
        found.append(f"the oldest has not been sent for {_rounded(status.oldest)} (max_age {_rounded(alerts.max_age)})")
    if status.dead > alerts.max_dead:
        found.append(f"{status.dead} messages are dead letters (max_dead {alerts.max_dead})")
    return found


def _rounded(length: timedelta) -> timedelta:
    return timedelta(seconds=round(length.total_seconds()))
