"""Deferred messages of a group, in any order of events: retried, parked, claimed, settled, given up, redriven."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from property.settings import examples
from property.world import World
from support.log_sql import Lane, advance, create_topic, defer, publish_many, read, settle_deferred, subscribe, take

_LANES = 2
_MOST = 3
_BACKOFF = timedelta(seconds=10)
_keys = st.none() | st.sampled_from(["x", "y", "z"])
_which = st.integers(0, 30)


@dataclass
class Waiting:
    """A deferred message: it is retried, or parked behind one of its key."""

    parked: bool
    attempts: int
    due: timedelta
    alone: bool | None = None
    """Of what is in hand."""
    suspected: bool = False


class Retries(RuleBasedStateMachine):
    """Each message is in one place: before the group, deferred, given up, or settled."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.topic = world.new_name("retry")
        backoff = {"retry_initial": "10s", "retry_factor": 1, "retry_jitter": 0}
        self.storage = world.run(create_topic(world.conn, self.topic, lanes=_LANES, max_attempts=_MOST, **backoff))
        self.group = world.run(subscribe(world.conn, topic=self.topic))
        self.held: dict[int, Lane] = {}
        self.former: list[Lane] = []
        self.worker = ""
        self.keys: dict[int, str | None] = {}
        self.lanes: dict[int, int] = {}
        self.unread: set[int] = set()
        self.waiting: dict[int, Waiting] = {}
        self.dead: dict[int, int] = {}
        """With their attempts."""
        self.purged: set[int] = set()
        self.tried: set[int] = set()
        """Claimed at some time, by whoever holds the lane."""
        self.done: set[int] = set()
        self.now = timedelta(0)
        self._take()

    def teardown(self) -> None:
        self.world.value("select postbus.delete_topic($1, force => true)", self.topic)
        for table in ("deferred", "dead_letter"):
            assert self.world.value(f"select count(*) from postbus.{table} where subscription_id = $1", self.group) == 0

    @rule(keys=st.lists(_keys, min_size=1, max_size=5))
    def publish(self, keys: list[str | None]) -> None:
        texts = [f"m{n}" for n in range(len(keys))]
        ids = self.world.run(publish_many(self.world.conn, *texts, topic=self.topic, keys=keys))
        self.keys |= dict(zip(ids, keys, strict=True))
        self.lanes |= dict(
            self.world.fetch("select id, lane from postbus.log where topic = $1 and id = any ($2)", self.topic, ids)
        )
        self.unread |= set(ids)

    @precondition(lambda self: self.unread)
    @rule(
        first=_which,
        kinds=st.lists(st.sampled_from(["done", "retry", "dead", "release", "suspect"]), min_size=4, max_size=4),
    )
    def read(self, first: int, kinds: list[str]) -> None:
        """Handle what is before a lane: failed messages are retried, and others of their key are parked behind them."""
        lane = self.lanes[_one_of(self.unread, first)]
        held = self.held[lane]
        result = self.world.run(read(self.world.conn, held.cursor, 4, topic=self.topic, lanes=(lane,)))
        assert result.ids == sorted(id for id in self.unread if self.lanes[id] == lane)[: len(result.ids)]
        for n, id in enumerate(result.ids):
            key = self.keys[id]
            is_behind = key is not None and any(self.keys[other] == key for other in self.waiting)
            kind = "park" if is_behind else kinds[n % len(kinds)]
            if kind != "done":
                told = self.world.run(defer(self.world.conn, held, result.after(n), kind))
                assert told == [_TOLD[kind]]
            self.unread.remove(id)
            if kind == "done":
                self.done.add(id)
            elif kind == "dead":
                self.dead[id] = 1
            else:
                attempts = 1 if kind == "retry" else 0
                self.waiting[id] = Waiting(kind == "park", attempts, self.now, suspected=kind == "suspect")
                self._unpark(key)
        assert self.world.run(advance(self.world.conn, [held], result.next, len(result.ids))) == []

    @precondition(lambda self: self.waiting)
    @rule(first=_which, count=st.integers(1, 4))
    def claim(self, first: int, count: int) -> None:
        """Claim due messages, and count the attempt. Messages in hand for longer than their lease are suspects."""
        lane = self.lanes[_one_of(self.waiting, first)]
        self._suspect(lane)
        rows = self.world.fetch("select * from postbus.claim_deferred_as_of(array[$1::uuid], $2, $3)",
                                self.held[lane].token, count, self._now())  # fmt: skip
        suspects = self._due(lane, suspected=True)
        if suspects:
            last = rows.pop()
            assert last["alone"] is None
            assert last["id"] in suspects
        due = self._due(lane, suspected=False)
        claimed = {row["id"] for row in rows}
        assert claimed <= due
        assert len(rows) == len(claimed) == min(count, len(due))
        for row in rows:
            self._is_in_hand(row, alone=False)

    @precondition(lambda self: self.waiting)
    @rule(first=_which)
    def claim_alone(self, first: int) -> None:
        """Claim a suspect alone, the first of its key."""
        lane = self.lanes[_one_of(self.waiting, first)]
        self._suspect(lane)
        rows = self.world.fetch("select * from postbus.claim_deferred_as_of(array[$1::uuid], 1, $2, is_alone => true)",
                                self.held[lane].token, self._now())  # fmt: skip
        due = {id for id in self._due(lane, suspected=True) if self._is_first(id)}
        assert {row["id"] for row in rows} <= due
        assert len(rows) == min(1, len(due))
        for row in rows:
            self._is_in_hand(row, alone=True)

    def _due(self, lane: int, *, suspected: bool) -> set[int]:
        here = {id: one for id, one in self.waiting.items() if self.lanes[id] == lane and one.suspected == suspected}
        return {id for id, one in here.items() if not one.parked and one.due <= self.now}

    def _is_first(self, id: int) -> bool:
        return self.keys[id] is None or id == min(other for other in self.waiting if self.keys[other] == self.keys[id])

    def _is_in_hand(self, row: Any, *, alone: bool) -> None:
        one = self.waiting[row["id"]]
        one.attempts += 1
        one.alone = alone
        one.due = self.now + timedelta(seconds=30)
        self.tried.add(row["id"])
        assert (row["attempts"], row["key"], row["alone"]) == (one.attempts, self.keys[row["id"]], alone)

    def _suspect(self, lane: int) -> None:
        for id, one in self.waiting.items():
            if self.lanes[id] == lane and one.alone is not None and not one.parked and one.due <= self.now:
                one.due = self.now + _BACKOFF if one.alone else self.now
                one.attempts -= not one.alone
                one.suspected, one.alone = True, None

    @precondition(lambda self: self.tried)
    @rule(which=_which, outcome=st.sampled_from(["done", "retry", "dead", "release"]), wait=st.integers(0, 2))
    def settle(self, which: int, outcome: str, wait: int) -> None:
        """Settle a claimed message; it is lost if another worker has settled it meanwhile."""
        id = _one_of(self.tried, which)
        one = self.waiting.get(id)
        if outcome in ("done", "dead") or one is None:
            self.tried.remove(id)
        lane = self.held[self.lanes[id]]
        delay = self.now + timedelta(hours=wait)
        told = self.world.run(settle_deferred(self.world.conn, lane, [id], outcome, delay=delay))
        if one is None:
            assert told == ["lost"]
        elif outcome == "release":
            assert told == ["released"]
            one.due, one.attempts, one.alone = self.now, max(one.attempts - 1, 0), None
        elif outcome == "retry" and one.attempts < _MOST:
            assert told == ["retried"]
            one.due, one.alone, one.suspected = self.now + timedelta(hours=wait), None, False
        else:
            assert told == ["done" if outcome == "done" else "dead"]
            del self.waiting[id]
            if outcome == "done":
                self.done.add(id)
            else:
                self.dead[id] = one.attempts
            self._unpark(self.keys[id])

    @precondition(lambda self: self.former and self.waiting)
    @rule(which=_which)
    def settle_what_is_lost(self, which: int) -> None:
        """Check that a worker that has lost a lane changes nothing any more, and gets nothing."""
        former = self.former[which % len(self.former)]
        ids = sorted(self.waiting)
        assert self.world.run(settle_deferred(self.world.conn, former, ids, "done")) == ["lost"] * len(ids)
        sql = "select count(*) from postbus.claim_deferred_as_of(array[$1::uuid], 10, $2)"
        assert self.world.value(sql, former.token, self._now()) == 0

    @rule()
    def take_over(self) -> None:
        self._take()

    @rule()
    def time_passes(self) -> None:
        self.now += timedelta(hours=1, minutes=1)

    @precondition(lambda self: self.dead)
    @rule(ids=st.none() | st.sets(_which, min_size=1, max_size=2), is_wrong=st.booleans(), is_purge=st.booleans())
    def redrive(self, ids: set[int] | None, is_wrong: bool, is_purge: bool) -> None:
        """Redrive or purge all dead letters, or some; an id that is none is refused."""
        among = self.keys if is_wrong else self.dead
        named = None if ids is None else [_one_of(among, n) for n in ids]
        function = "purge_dead_letters" if is_purge else "redrive"
        sql = f"select postbus.{function}($1, ids => $2, group_name => 'g')"
        if named is not None and not set(named) <= set(self.dead):
            assert self.world.refusal(sql, self.topic, named) == "PB405"
            return
        chosen = set(self.dead) if named is None else set(named)
        assert self.world.value(sql, self.topic, named) == len(chosen)
        for id in chosen:
            del self.dead[id]
            if is_purge:
                self.purged.add(id)
            else:
                self.waiting[id] = Waiting(parked=False, attempts=0, due=timedelta(0))

    @rule()
    def sweep(self) -> None:
        self.world.fetch("select * from postbus.sweep_log($1)", self.storage)

    @invariant()
    def each_message_is_in_its_place(self) -> None:
        rows = self.world.fetch("select id, lane, parked, attempts from postbus.deferred where subscription_id = $1",
                                self.group)  # fmt: skip
        expected = {(id, self.lanes[id], one.parked, one.attempts) for id, one in self.waiting.items()}
        assert {tuple(row) for row in rows} == expected
        rows = self.world.fetch("select id, attempts from postbus.dead_letter where subscription_id = $1", self.group)
        assert {tuple(row) for row in rows} == set(self.dead.items())

    @invariant()
    def deliveries_are_as_expected(self) -> None:
        rows = self.world.fetch("select id, status from postbus.deliveries where topic = $1", self.topic)
        assert {tuple(row) for row in rows} == {(id, self._status(id)) for id in self.keys}

    @invariant()
    def nothing_waits_for_nobody(self) -> None:
        """Check that of each waiting key at least one message may be tried, and no later one before the first that
        was read."""
        for id, one in self.waiting.items():
            if one.parked:
                assert any(
                    not first.parked for other, first in self.waiting.items() if self.keys[other] == self.keys[id]
                )

    def _status(self, id: int) -> str:
        if id in self.waiting:
            return "WAITING" if self.waiting[id].parked else "RETRYING"
        if id in self.dead or id in self.purged:
            return "DEAD"
        return "COMPLETED" if id in self.done else "PENDING"

    def _unpark(self, key: str | None) -> None:
        """Make the first message of a key due at once, if it was to wait."""
        behind = [id for id in self.waiting if key is not None and self.keys[id] == key]
        if behind and self.waiting[min(behind)].parked:
            self.waiting[min(behind)].parked = False
            self.waiting[min(behind)].due = self.now

    def _now(self) -> Any:
        return self.world.value("select clock_timestamp() + $1::interval", self.now)

    def _take(self) -> None:
        """Let a new worker take all lanes from the one before it, which has vanished."""
        self.former += self.held.values()
        sql = "update postbus.worker set seen_at = clock_timestamp() - interval '1 hour' where name = $1"
        self.world.value(sql, self.worker)
        self.worker = self.world.new_name("w")
        self.held = {lane.lane: lane for lane in self.world.run(take(self.world.conn, self.worker, self.group))}
        assert sorted(self.held) == list(range(_LANES))


def _one_of(ids: Iterable[int], which: int) -> int:
    known = sorted(ids)
    return known[which % len(known)]


_TOLD = {"retry": "retried", "park": "parked", "dead": "dead", "release": "released", "suspect": "suspected"}


def test_retries_go_as_the_model_says(world: World) -> None:
    """Nothing is lost or in two places, keys keep their order, and attempts are counted."""
    machine: Any = partial(Retries, world)
    run_state_machine_as_test(machine, settings=examples(30, steps=40))
