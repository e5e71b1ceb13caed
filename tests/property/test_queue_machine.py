"""A queue, in any order of events: publishing, claiming, every settlement, expiry, redrives, pauses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from property.settings import examples
from property.world import World

_MOST = 3
_HOUR = timedelta(hours=1)
_LEASE = timedelta(seconds=30)
_BACKOFF = timedelta(seconds=10)
_keys = st.sampled_from(["x", "y", "z"])
_delays = st.sampled_from([None, None, timedelta(minutes=30), timedelta(minutes=90)])
_which = st.integers(0, 30)


@dataclass
class Queued:
    """A message of the queue. A delayed one enters the queue by the first claim after it is due."""

    key: str
    priority: int
    due: timedelta | None
    """Since the beginning; None for what is in the queue."""
    attempts: int = 0
    is_dead: bool = False
    lease: Any = None
    trial: int | None = None
    """With how many it may be tried, if it is suspected."""


class Queue(RuleBasedStateMachine):
    """Each message waits, is leased once, or is dead; in an ordered topic one of each key is in hand at a time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.topic = world.new_name("queue")
        self.ordered = False
        self.paused = False
        self.messages: dict[int, Queued] = {}
        self.leases: dict[Any, tuple[set[int], timedelta]] = {}
        """The open messages of each lease, and when it ends."""
        self.alone: set[Any] = set()
        """Leases whose holder does nothing else."""
        self.over: list[tuple[Any, list[int]]] = []
        self.heads: dict[str, int] = {}
        """Of an ordered topic: the only message of a key that may be claimed, while one is in hand or was found."""
        self.now = timedelta(0)
        self.floor: str | None = None

    @initialize(ordered=st.booleans())
    def create(self, ordered: bool) -> None:
        backoff = {"retry_initial": "10s", "retry_factor": 1, "retry_jitter": 0}
        options = json.dumps({"ordered": ordered, "max_attempts": _MOST, **backoff})
        self.world.value("select postbus.create_topic($1, $2)", self.topic, options)
        self.ordered = ordered

    def teardown(self) -> None:
        """In the end everything that is left is claimed, once each, apart from dead letters."""
        if self.paused:
            self.world.value("select postbus.resume_topic($1)", self.topic)
            self.paused = False
        self.now += 10 * _HOUR
        self._expire()
        self.now += _BACKOFF
        while any(not one.is_dead for one in self.messages.values()):
            token = self._claim(100, with_floor=False) or self._claim_suspects()
            assert token is not None, f"nobody gets {self.messages}"
            self._end(token, sorted(self.leases[token][0]), "select postbus.ack($1, $2)")
        self.world.value("select postbus.delete_topic($1, force => true)", self.topic)

    @rule(keys=st.lists(_keys, min_size=1, max_size=4), priority=st.sampled_from([0, 4, 9]), delay=_delays)
    def publish(self, keys: list[str], priority: int, delay: timedelta | None) -> None:
        count = len(keys)
        ids = self.world.value(
            "select postbus.publish_many($1, $2::bytea[], keys => $3, priorities => $4, delays => $5)",
            self.topic,
            [b"x"] * count,
            keys,
            [priority] * count,
            [delay] * count,
        )
        for id, key in zip(ids, keys, strict=True):
            self.messages[id] = Queued(key, priority, delay)

    @precondition(lambda self: self.messages)
    @rule(count=st.integers(1, 5), with_floor=st.booleans())
    def claim(self, count: int, with_floor: bool) -> None:
        self._claim(count, with_floor=with_floor)

    @precondition(lambda self: any(one.trial is not None for one in self.messages.values()))
    @rule()
    def claim_suspects(self) -> None:
        self._claim_suspects()

    @precondition(lambda self: self.leases)
    @rule(which=_which, some=st.integers(1, 5), way=st.sampled_from(["ack", "release", "dead_letter"]))
    def settle(self, which: int, some: int, way: str) -> None:
        token = list(self.leases)[which % len(self.leases)]
        ids = sorted(self.leases[token][0])[:some]
        sql = f"select postbus.{way}($1, $2)" if way != "dead_letter" else "select postbus.dead_letter($1, $2, 'no')"
        if way == "ack":
            self._end(token, ids, sql)
            return
        assert self.world.value(sql, token, ids) == []
        self._close(token, ids)
        for id in ids:
            one = self.messages[id]
            if way == "release":
                one.attempts -= 1
                one.due = one.trial = None
            else:
                self._bury(id)

    @precondition(lambda self: self.leases)
    @rule(which=_which, some=st.integers(1, 5), delay=st.sampled_from([timedelta(0), timedelta(minutes=90)]))
    def retry(self, which: int, some: int, delay: timedelta) -> None:
        token = list(self.leases)[which % len(self.leases)]
        ids = sorted(self.leases[token][0])[:some]
        told = dict(self.world.fetch("select * from postbus.retry($1, $2, $3)", token, ids, self.now + delay))
        assert told == {id: "retried" if self.messages[id].attempts < _MOST else "dead" for id in ids}
        self._close(token, ids)
        for id in ids:
            if told[id] == "dead":
                self._bury(id)
            else:
                self.messages[id].due, self.messages[id].trial = self.now + delay, None

    @precondition(lambda self: self.leases)
    @rule(which=_which)
    def ack_lease(self, which: int) -> None:
        token = list(self.leases)[which % len(self.leases)]
        assert self.world.value("select postbus.ack_leases(array[$1::uuid])", token) == []
        ids = sorted(self.leases[token][0])
        self._close(token, ids)
        self._finish(ids)

    @precondition(lambda self: self.over)
    @rule(which=_which, way=st.sampled_from(["ack($1, $2)", "release($1, $2)", "dead_letter($1, $2, 'no')"]))
    def settle_what_is_lost(self, which: int, way: str) -> None:
        """Check that a message that was settled, or leased again, stays as it is."""
        token, ids = self.over[which % len(self.over)]
        assert sorted(self.world.value(f"select postbus.{way}", token, ids)) == sorted(ids)
        told = self.world.fetch("select * from postbus.retry($1, $2)", token, ids)
        assert {tuple(row) for row in told} == {(id, "lost") for id in ids}

    @precondition(lambda self: self.leases)
    @rule(which=_which, length=st.sampled_from([_LEASE, 2 * _HOUR]))
    def extend(self, which: int, length: timedelta) -> None:
        token = list(self.leases)[which % len(self.leases)]
        gone = [lost for lost, _ in self.over if lost not in self.leases]
        told = self.world.value("select postbus.extend($1, $2)", [token, *gone], self.now + length)
        assert sorted(told) == sorted(gone)
        self.leases[token] = (self.leases[token][0], self.now + length)

    @rule()
    def time_passes(self) -> None:
        self.now += _HOUR

    @precondition(lambda self: self.leases)
    @rule()
    def expire(self) -> None:
        self._expire()

    @precondition(lambda self: any(one.is_dead for one in self.messages.values()))
    @rule(which=_which, is_all=st.booleans(), is_wrong=st.booleans())
    def redrive(self, which: int, is_all: bool, is_wrong: bool) -> None:
        """Redrive dead letters, which then have no attempts; an id that is none is refused."""
        dead = {id for id, one in self.messages.items() if one.is_dead}
        ids = None if is_all else [_one_of(self.messages if is_wrong else dead, which)]
        sql = "select postbus.redrive($1, ids => $2)"
        if ids is not None and not set(ids) <= dead:
            assert self.world.refusal(sql, self.topic, ids) == "PB405"
            return
        chosen = dead if ids is None else set(ids)
        assert self.world.value(sql, self.topic, ids) == len(chosen)
        for id in chosen:
            one = self.messages[id]
            one.is_dead, one.attempts, one.due, one.trial = False, 0, None, None

    @rule()
    def pause_or_resume(self) -> None:
        self.world.value(f"select postbus.{'resume' if self.paused else 'pause'}_topic($1)", self.topic)
        self.paused = not self.paused

    @invariant()
    def each_message_is_in_its_place(self) -> None:
        rows = self.world.fetch("select id, state, attempts from postbus.messages where topic = $1", self.topic)
        assert len(rows) == len({row["id"] for row in rows}), "one is in two places"
        found = {row["id"]: (row["state"] == "dead", row["state"] == "leased", row["attempts"]) for row in rows}
        assert found == {id: (one.is_dead, one.lease is not None, one.attempts) for id, one in self.messages.items()}

    def _claim(self, count: int, *, with_floor: bool) -> Any:
        """Claim, and compare with what may be claimed. Returns the lease, if there is one."""
        [row] = self.world.fetch(
            "select * from postbus.claim_as_of($1, 'm', $2, lease => $3, scan_floor => $4, as_of => $5, "
            "with_suspects => false)",
            self.topic,
            count,
            _LEASE,
            self.floor if with_floor else None,
            self._at(),
        )
        self.floor = row["next_scan_floor"]
        claimable = self._claimable()
        ids = row["ids"] or []
        assert set(ids) <= claimable
        assert len(ids) == len(set(ids)) == min(count, len(claimable))
        best = sorted((self.messages[id].priority for id in claimable), reverse=True)
        assert [self.messages[id].priority for id in ids] == best[: len(ids)]
        if not ids:
            assert row["token"] is None
            return None
        for id, attempt in zip(ids, row["attempts"], strict=True):
            one = self.messages[id]
            one.attempts += 1
            one.lease = row["token"]
            assert attempt == one.attempts
        self.leases[row["token"]] = (set(ids), self.now + _LEASE)
        return row["token"]

    def _claim_suspects(self) -> Any:
        """Claim a suspect, as a worker that does nothing else. Returns the lease, if there is one."""
        sql = "select * from postbus.claim_suspects_as_of($1, 'm', lease => $2, is_promised => true, as_of => $3)"
        [row] = self.world.fetch(sql, self.topic, _LEASE, self._at())
        free = {
            id: one.trial
            for id, one in self.messages.items()
            if one.trial is not None and one.lease is None and (one.due is None or one.due <= self.now)
        }
        if self.paused or not free:
            assert row["token"] is None
            return None
        ids = row["ids"]
        assert set(ids) <= set(free)
        [trial] = {free[id] for id in ids}
        assert trial is not None
        assert len(ids) == min(trial, sum(other == trial for other in free.values()))
        for id, attempt in zip(ids, row["attempts"], strict=True):
            one = self.messages[id]
            one.attempts += 1
            one.lease, one.due = row["token"], None
            assert attempt == one.attempts
        self.leases[row["token"]] = (set(ids), self.now + _LEASE)
        self.alone.add(row["token"])
        return row["token"]

    def _claimable(self) -> set[int]:
        if self.paused:
            return set()
        for one in self.messages.values():
            if one.due is not None and one.due <= self.now and one.trial is None:
                one.due = None
        due = {id for id, one in self.messages.items() if self._is_waiting(one)}
        if not self.ordered:
            return due
        for id in sorted(due):
            self.heads.setdefault(self.messages[id].key, id)
        return due & set(self.heads.values())

    def _is_waiting(self, one: Queued) -> bool:
        return not one.is_dead and one.lease is None and one.due is None and one.trial is None

    def _pass_on(self, ids: list[int]) -> None:
        """Free the next message of a key: the first one in the queue at that moment."""
        for key in [key for key, head in self.heads.items() if head in ids]:
            behind = [id for id, one in self.messages.items() if one.key == key and self._is_waiting(one)]
            if behind:
                self.heads[key] = min(behind)
            else:
                del self.heads[key]

    def _end(self, token: Any, ids: list[int], sql: str) -> None:
        assert self.world.value(sql, token, ids) == []
        self._close(token, ids)
        self._finish(ids)

    def _close(self, token: Any, ids: list[int]) -> None:
        """Remove these from their lease."""
        self.over.append((token, ids))
        left, ends = self.leases[token]
        self.leases[token] = (left - set(ids), ends)
        if not self.leases[token][0]:
            del self.leases[token]
        for id in ids:
            self.messages[id].lease = None

    def _finish(self, ids: list[int]) -> None:
        for id in ids:
            del self.messages[id]
        self._pass_on(ids)

    def _bury(self, id: int) -> None:
        self.messages[id].is_dead, self.messages[id].trial = True, None
        self._pass_on([id])

    def _expire(self) -> None:
        """Make messages of an expired lease suspects. Only one that was alone is charged, and dead in the end."""
        ended = [token for token, (_, ends) in self.leases.items() if ends <= self.now]
        count = sum(len(self.leases[token][0]) for token in ended)
        assert self.world.value("select postbus.return_expired_as_of(as_of => $1)", self._at()) == count
        for token in ended:
            ids = sorted(self.leases[token][0])
            self._close(token, ids)
            is_charged = len(ids) == 1 and token in self.alone
            for id in ids:
                one = self.messages[id]
                if is_charged and one.attempts >= _MOST:
                    self._bury(id)
                    continue
                one.trial = 1 if is_charged else max(1, count // 8)
                one.due = self.now + _BACKOFF if is_charged and one.attempts >= 2 else None
                one.attempts -= not is_charged

    def _at(self) -> Any:
        return self.world.value("select clock_timestamp() + $1::interval", self.now)


def _one_of(ids: Iterable[int], which: int) -> int:
    known = sorted(ids)
    return known[which % len(known)]


def test_queue_goes_as_the_model_says(world: World) -> None:
    """Nothing is lost or leased twice at the same time, keys keep their order, and attempts are counted."""
    machine: Any = partial(Queue, world)
    run_state_machine_as_test(machine, settings=examples(30, steps=40))
