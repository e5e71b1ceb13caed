"""The states of messages by their rules, and what the views say of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

_WAITS = ("PENDING", "RETRYING", "WAITING")


@dataclass
class Seen:
    """The observed facts: live groups, what each has before it, in hand, deferred, and as dead letters."""

    lives: set[str] = field(default_factory=set)
    before: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    waits: defaultdict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    idle: set[tuple[str, int]] = field(default_factory=set)  # deferred where nobody reads: its catch-up was cancelled
    letters: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))


@dataclass
class Told:
    """The reported state of a message: required and completed groups, and the delivery to each group."""

    required: list[str]
    completed: list[str]
    status: str
    is_wanted: bool
    at: dict[str, tuple[str, bool]]


class StateModel:
    """Records who settled what, forever; the rest follows from what groups have before them.

    A group that has settled a message was required for it, for good. COMPLETED is final. A live group is required for
    messages before it that were not completed; a DEAD or cancelled one only for those it gave up. A message is for
    nobody if no group ever was required for it.
    """

    def __init__(self) -> None:
        self.sent: set[int] = set()
        self.done: defaultdict[str, set[int]] = defaultdict(set)
        self.given_up: defaultdict[str, set[int]] = defaultdict(set)
        self._completed: set[int] = set()
        self._wanted: set[int] = set()

    def tell(self, seen: Seen) -> dict[int, Told]:
        return {id: self._tell(id, seen) for id in sorted(self.sent)}

    def _tell(self, id: int, seen: Seen) -> Told:
        names = self.done.keys() | self.given_up.keys() | seen.before.keys() | seen.waits.keys()
        at = {name: status for name in sorted(names) if (status := self._at(name, id, seen))}
        waiting = {
            name for name, status in at.items()
            if name in seen.lives and status in _WAITS and ((name, id) not in seen.idle or id in seen.before[name])
        }  # fmt: skip
        needed = waiting | {name for name, status in at.items() if status == "DEAD"}
        completed = {name for name, status in at.items() if status == "COMPLETED"}
        if completed and not needed:
            self._completed.add(id)
        required = completed if id in self._completed else completed | needed
        if required:
            self._wanted.add(id)
        return Told(
            sorted(required),
            sorted(completed),
            self._status(id, {at[name] for name in required}),
            id in self._wanted,
            {name: (status, name in required) for name, status in at.items()},
        )

    def _at(self, name: str, id: int, seen: Seen) -> str | None:
        if id in self.done[name]:
            return "COMPLETED"
        if id in seen.waits[name]:
            return seen.waits[name][id]
        if id in self.given_up[name] and (id in seen.letters[name] or id not in seen.before[name]):
            return "DEAD"
        return "PENDING" if id in seen.before[name] else None

    def _status(self, id: int, statuses: set[str]) -> str:
        if id in self._completed:
            return "COMPLETED"
        if statuses <= {"PENDING"}:
            return "PENDING"
        return "FAILED" if statuses <= {"COMPLETED", "DEAD"} else "PROCESSING"


async def differences(conn: Any, topic: str, told: dict[int, Told], looked_at: set[int]) -> list[str]:
    """Return where a view differs, or says something else of single messages than of all."""
    found: list[str] = []

    def compare(view: str, got: Any, expected: Any) -> None:
        if got != expected:
            found.append(f"{view}: {got}, but expected {expected}")

    states = await _by_id(conn, "select * from postbus.message_states where topic = $1", topic)
    outbox = await _by_id(conn, "select * from postbus_outbox.outbox where topic = $1", topic)
    deliveries = await _by_group(conn, "select *, id as message_id from postbus.deliveries where topic = $1", topic)
    tracked = await _by_group(conn, "select * from postbus_outbox.outbox_consumer_groups where topic = $1", topic)
    for id, one in told.items():
        state, row = states[id], outbox[id]
        compare(f"message_states of {id}", _of(state), (one.required, one.completed, one.status))
        counted = len(one.required) or (None if one.is_wanted else 0)
        compare(
            f"outbox of {id}",
            (row["required_consumer_groups"], row["completed_consumer_groups"], row["status"], row["processed_at"]),
            (counted, len(one.completed), one.status, state["settled_at"]),
        )
        listed = {name: row for name, row in deliveries[id].items() if row["status"] not in ("SKIPPED", "ABANDONED")}
        compare(f"deliveries of {id}", {name: (row["status"], row["required"]) for name, row in listed.items()}, one.at)
        outcomes = {"COMPLETED": "COMPLETED", "DEAD": "FAILED"}
        settled = {name: outcomes[status] for name, (status, _) in one.at.items() if status in outcomes}
        rows = {name: row["status"] for name, row in tracked[id].items()}
        compare(f"settled in outbox_consumer_groups of {id}", {name: rows.get(name) for name in settled}, settled)
        failing = {name for name, (status, _) in one.at.items() if status in ("RETRYING", "WAITING")}
        compare(f"outbox_consumer_groups lacks of {id}", (failing | rows.keys()) - deliveries[id].keys(), set())
        compare(f"outbox_consumer_groups lacks what waits of {id}", failing - rows.keys(), set())
    for id in looked_at:
        alone = await conn.fetchrow("select * from postbus.message_state($1, $2)", topic, id)
        compare(f"message_state of {id}", _of(alone), _of(states[id]))
        compare(f"settled_at of {id}", alone["settled_at"], states[id]["settled_at"])
        rows = await conn.fetch("select * from postbus.deliveries_of($1, $2)", topic, id)
        same = {row["group_name"]: {key: deliveries[id][row["group_name"]][key] for key in dict(row)} for row in rows}
        compare(f"deliveries_of {id}", {row["group_name"]: dict(row) for row in rows}, same)
        compare(f"groups of deliveries_of {id}", same.keys(), deliveries[id].keys())
    nobody = await conn.fetchval("select messages from postbus.zero_subscription_messages() where topic = $1", topic)
    compare("zero_subscription_messages", nobody or 0, sum(not one.is_wanted for one in told.values()))
    compare("inconsistencies", await conn.fetch("select * from postbus.inconsistencies()"), [])
    return found


def _of(row: Any) -> tuple[list[str], list[str], str]:
    return row["required"], row["completed"], row["status"]


async def _by_id(conn: Any, sql: str, topic: str) -> dict[int, Any]:
    rows = await conn.fetch(sql, topic)
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


async def _by_group(conn: Any, sql: str, topic: str) -> defaultdict[int, dict[str, Any]]:
    found: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for row in await conn.fetch(sql, topic):
        assert row["group_name"] not in found[row["message_id"]], "one row each"
        found[row["message_id"]][row["group_name"]] = row
    return found
