"""A pulling group, in any order of events: pops, settlements, expired leases, redrives and seeks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from property.settings import examples
from property.world import World
from support.log_sql import create_topic, publish_many, subscribe
from support.pop_sql import Pop, pop

_MOST = 3
_LEASE = timedelta(seconds=30)
_BACKOFF = timedelta(seconds=10)
_keys = st.sampled_from(["x", "x", "x", "y", None])
_which = st.integers(0, 30)


@dataclass
class Open:
    """A message that the group has not settled."""

    attempts: int = 0
    due: timedelta = timedelta(0)
    """When it may be popped: after its delay, or when its lease ends."""
    token: UUID | None = None
    redriven: bool = False
    alone: bool | None = None
    """Whether nothing else is in hand with it, as far as that is known."""
    suspected: bool = False


class Pulling(RuleBasedStateMachine):
    """Each message is open, given up or settled; the first ones of a key are in one hand at a time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.topic = world.new_name("pull")
        backoff = {"retry_initial": "10s", "retry_factor": 1, "retry_jitter": 0}
        world.run(create_topic(world.conn, self.topic, lanes=2, max_attempts=_MOST, lease="30s", **backoff))
        self.group = world.run(subscribe(world.conn, topic=self.topic))
        self.keys: dict[int, str | None] = {}
        self.open: dict[int, Open] = {}
        self.dead: dict[int, int] = {}
        """With their attempts."""
        self.pops: list[Pop] = []
        self.now = timedelta(0)

    def teardown(self) -> None:
        """In the end every open message comes, and then nothing is left."""
        self.now += timedelta(days=1)
        while self.open:
            popped = self._pop(5, None)
            assert popped.ids or not self.open, f"{self.open} never come"
            self._settle(popped.token, popped.ids, "ack", timedelta(0))
            self.now += timedelta(hours=1)
        assert self._pop(5, None).ids == []
        self.world.value("select postbus.delete_topic($1, force => true)", self.topic)

    @rule(keys=st.lists(_keys, min_size=2, max_size=6))
    def publish(self, keys: list[str | None]) -> None:
        texts = [f"m{n}" for n in range(len(keys))]
        ids = self.world.run(publish_many(self.world.conn, *texts, topic=self.topic, keys=keys))
        self.keys |= dict(zip(ids, keys, strict=True))
        self.open |= {id: Open() for id in ids}

    @rule(count=st.integers(1, 4), key=st.sampled_from([None, None, None, "x", "y"]))
    def pop(self, count: int, key: str | None) -> None:
        self.pops.append(self._pop(count, key))

    @precondition(lambda self: self.pops)
    @rule(
        which=_which,
        first=_which,
        count=st.integers(1, 5),
        outcome=st.sampled_from(["ack", "ack", "retry", "dead_letter", "release"]),
        wait=st.integers(0, 2),
    )
    def settle(self, which: int, first: int, count: int, outcome: str, wait: int) -> None:
        """Settle some of what a pop returned, now or much later: it is lost if another pop has it."""
        popped = self.pops[which % len(self.pops)]
        if popped.ids:
            first %= len(popped.ids)
            self._settle(popped.token, popped.ids[first : first + count], outcome, timedelta(hours=wait))

    @precondition(lambda self: self.pops)
    @rule(which=_which)
    def extend(self, which: int) -> None:
        """Extend the lease of what is left in hand of a pop."""
        token = self.pops[which % len(self.pops)].token
        held = [one for one in self.open.values() if token is not None and one.token == token]
        lost = self.world.value("select postbus.extend(array[$1::uuid], $2)", token, self.now + _LEASE)
        assert lost == ([] if held else [token])
        for one in held:
            one.due = self.now + _LEASE

    @rule(by=st.sampled_from([timedelta(seconds=31), timedelta(seconds=31), timedelta(hours=2)]))
    def time_passes(self, by: timedelta) -> None:
        self.now += by

    @precondition(lambda self: self.dead)
    @rule(which=_which)
    def redrive(self, which: int) -> None:
        """Redrive a dead letter, which then has no attempts."""
        id = _one_of(self.dead, which)
        sql = "select postbus.redrive($1, ids => array[$2::bigint], group_name => 'g')"
        assert self.world.value(sql, self.topic, id) == 1
        del self.dead[id]
        self.open.setdefault(id, Open(redriven=True))

    @precondition(lambda self: len(self.pops) % 5 == 4)
    @rule(back=st.booleans())
    def seek(self, back: bool) -> None:
        """Seek: deferred messages and those parked behind them stay; all others come again, or none."""
        buffered = {
            row["id"]
            for row in self.world.fetch("select id from postbus.deferred where subscription_id = $1", self.group)
        }
        tried = {self.keys[id] for id, one in self.open.items() if one.attempts > 0} - {None}
        stay = {
            id
            for id, one in self.open.items()
            if one.attempts > 0 or one.redriven or (id in buffered and self.keys[id] in tried)
        }
        start = "FROM_BEGINNING" if back else "FROM_NOW"
        self.world.value("select postbus.seek($1, 'g', $2)", self.topic, start)
        self.open = {id: self.open[id] if id in stay else Open() for id in (self.keys if back else sorted(stay))}

    @invariant()
    def each_message_is_in_its_hand(self) -> None:
        rows = self.world.fetch(
            "select id, attempts, token from postbus.deferred where subscription_id = $1 and token is not null",
            self.group,
        )
        held = {(id, one.attempts, one.token) for id, one in self.open.items() if one.token is not None}
        assert {tuple(row) for row in rows} == held
        rows = self.world.fetch("select id, attempts from postbus.dead_letter where subscription_id = $1", self.group)
        assert {tuple(row) for row in rows} == set(self.dead.items())

    @invariant()
    def the_first_of_a_key_waits_behind_nothing(self) -> None:
        sql = """select count(*) from (select distinct on (lane, key) parked from postbus.deferred
                                        where subscription_id = $1 and key is not null
                                        order by lane, key, sequence, id) as first where first.parked"""
        assert self.world.value(sql, self.group) == 0

    def _pop(self, count: int, key: str | None) -> Pop:
        member = self.world.new_name("member")  # each has the messages of one pop, and nothing else
        options = {"topic": self.topic, "key": key, "member": member, "as_of": self._at()}
        popped = self.world.run(pop(self.world.conn, count, **options))
        assert popped.ids == sorted(set(popped.ids))
        assert len(popped.ids) <= count
        assert key is None or set(popped.keys) <= {key}
        self._give_up()
        free = self._free(key)
        assert bool(popped.ids) == bool(free), f"got {popped.ids} of {free}"
        is_alone = any(self.open[id].suspected or self.open[id].token is not None for id in popped.ids)
        assert len(popped.ids) == 1 or not is_alone, "a suspect came with others"
        for id, attempts in zip(popped.ids, popped.attempts, strict=True):
            assert id in self._free(key) or self._is_behind(id, popped)
            one = self.open[id]
            assert one.due <= self.now
            is_charged = one.token is not None and self._was_alone(id)
            more = _BACKOFF if is_charged and one.attempts >= 2 else timedelta(0)
            one.attempts += is_charged or one.token is None
            assert attempts == one.attempts
            one.due, one.token = self.now + _LEASE + more, popped.token
            one.suspected, one.alone = is_alone, True if is_alone else None
        if is_alone:  # losing the first message of a key loses those behind it
            first = popped.ids[0]
            for id, one in self.open.items():
                if (
                    one.token not in (None, popped.token)
                    and id > first
                    and self.keys[id] == self.keys[first] is not None
                ):
                    one.token, one.alone, one.suspected = None, None, True
                    one.attempts -= 1
        return popped

    def _was_alone(self, id: int) -> bool:
        """Return whether the holder had nothing else in hand, and note that for its other messages."""
        one = self.open[id]
        if one.alone is not None:
            return one.alone
        others = [other for other in self.open.values() if other is not one and other.token == one.token]
        for other in others:
            other.alone = False if other.alone is None else other.alone
        return not others

    def _give_up(self) -> None:
        """Give up messages that returned after their last attempt, when a pop meets them."""
        rows = self.world.fetch(
            "select id, attempts from postbus.dead_letter d where subscription_id = $1 and not exists "
            "(select from postbus.deferred r where r.subscription_id = d.subscription_id and r.id = d.id)",
            self.group,
        )
        for id, attempts in rows:
            one = self.open.get(id)
            if one is not None and one.token is not None and one.attempts == attempts == _MOST and one.due <= self.now:
                del self.open[id]
                self.dead[id] = attempts

    def _of_key(self, key: str | None) -> list[int]:
        return sorted(id for id in self.open if self.keys[id] == key)

    def _free(self, wanted: str | None) -> set[int]:
        """Return the first message of each key with nothing in hand, and all messages without a key."""
        found = set()
        for key in {self.keys[id] for id in self.open} if wanted is None else {wanted}:
            line = self._of_key(key)
            if key is None:
                found |= {id for id in line if self.open[id].due <= self.now}
            elif line and self.open[line[0]].due <= self.now:
                in_hand = [id for id in line if self.open[id].token is not None and self.open[id].due > self.now]
                found |= set() if in_hand else {line[0]}
        return found

    def _is_behind(self, id: int, popped: Pop) -> bool:
        """Return those that follow directly behind others of their key in the same pop."""
        key = self.keys[id]
        before = [other for other in self._of_key(key) if other < id]
        return key is not None and bool(before) and all(other in popped.ids for other in before)

    def _settle(self, token: UUID | None, ids: list[int], outcome: str, wait: timedelta) -> None:
        mine = [id for id in ids if id in self.open and self.open[id].token == token]
        lost = sorted(set(ids) - set(mine))
        if outcome == "retry":
            rows = self.world.fetch("select * from postbus.retry($1, $2, $3)", token, ids, self.now + wait)
            assert sorted(row["message_id"] for row in rows if row["outcome"] == "lost") == lost
        else:
            given = ["no use"] if outcome == "dead_letter" else []
            named = ", $3" if given else ""
            assert sorted(self.world.value(f"select postbus.{outcome}($1, $2{named})", token, ids, *given)) == lost
        back = []
        for id in mine:
            one = self.open[id]
            if outcome == "ack":
                del self.open[id]
            elif outcome == "dead_letter" or (outcome == "retry" and one.attempts >= _MOST):
                self.dead.setdefault(id, one.attempts)
                del self.open[id]
            else:
                back.append(id)
        self._give_back(token, back, wait if outcome == "retry" else None)

    def _give_back(self, token: UUID | None, back: list[int], wait: timedelta | None) -> None:
        """Return them with those that the pop has in hand behind them."""
        behind = {
            id
            for id, one in self.open.items()
            if one.token == token
            and any(self.keys[id] == self.keys[first] is not None and id > first for first in back)
        }
        for id in {*back, *behind}:
            one = self.open[id]
            one.token = one.alone = None
            if id in back and wait is not None:
                one.due, one.suspected = self.now + wait, False
            else:
                one.due, one.attempts = self.now, one.attempts - 1

    def _at(self) -> Any:
        return self.world.value("select clock_timestamp() + $1::interval", self.now)


def _one_of(ids: Iterable[int], which: int) -> int:
    known = sorted(ids)
    return known[which % len(known)]


def test_pulling_goes_as_the_model_says(world: World) -> None:
    """Nothing is lost, stuck or in two hands, keys keep their order, and attempts are counted."""
    machine: Any = partial(Pulling, world)
    run_state_machine_as_test(machine, settings=examples(30, steps=40))
