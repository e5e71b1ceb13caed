"""The life of a group, in any order of events: reading, pausing, dying, returning, seeking, catching up."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from property.group_model import Group, Messages, Reading, Sent
from property.settings import examples
from property.world import World
from support.log_sql import Lane, advance, create_topic, publish_many, read, take

_LANES = 2
_names = st.sampled_from(["a", "b", "c"])
_keys = st.none() | st.sampled_from(["x", "y", "z"])
_starts = st.sampled_from(["FROM_NOW", "FROM_BEGINNING", "FROM_TIMESTAMP", "FROM_MESSAGE_ID", "LATER", "NEXT_ID"])
_which = st.integers(0, 30)


class Lifecycle(RuleBasedStateMachine):
    """Compares all groups, their catch-ups and all messages with the model after each step."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.topic = world.new_name("life")
        self.storage = world.run(create_topic(world.conn, self.topic, lanes=_LANES))
        self.sent: list[Sent] = []
        self.groups: dict[str, Group] = {}
        self.messages = Messages()
        self.lost: list[tuple[Lane, str]] = []
        self.later = timedelta(0)

    def teardown(self) -> None:
        self.world.value("select postbus.delete_topic($1, force => true)", self.topic)
        for table in ("subscription", "topic"):
            assert self.world.value(f"select count(*) from postbus.{table} where {_OF[table]} = $1", self.topic) == 0

    # Events.

    @rule(keys=st.lists(_keys, min_size=1, max_size=5), has_keys=st.booleans())
    def publish(self, keys: list[str | None], has_keys: bool) -> None:
        given = keys if has_keys else None
        texts = [f"m{len(self.sent) + n}" for n in range(len(keys))]
        ids = self.world.run(publish_many(self.world.conn, *texts, topic=self.topic, keys=given))
        self._note(ids)

    @rule(key=_keys)
    def publish_one(self, key: str | None) -> None:
        id = self.world.value("select postbus.publish($1, 'one'::text, key => $2)", self.topic, key)
        self._note([id])

    @rule(name=_names, start=_starts, which=_which, beside_from=st.integers(0, 4), most=st.none() | st.integers(0, 6))
    def subscribe(self, name: str, start: str, which: int, beside_from: int, most: int | None) -> None:
        kind, at, id = self._start(start, which)
        bounds = json.dumps({"beside_from": beside_from, "max_messages": most})
        [answer] = self.world.fetch(
            "select * from postbus.subscribe($1, $2, $3, $4, $5, catch_up => $6)",
            self.topic,
            name,
            kind,
            at,
            id,
            bounds,
        )
        known = self.groups.get(name)
        assert answer["is_new"] == (known is None)
        if known is not None:
            known.beside_from, known.max_messages = beside_from, most
            if known.state == "DEAD":
                known.state = "ACTIVE"
                self._bound(known, answer)
        else:
            live = Reading(answer["subscription_id"], self._from(kind, at, id))
            self.groups[name] = known = Group(name, live, beside_from, most, at, id)
            if kind != "FROM_NOW":
                self._bound(known, answer)
        assert (answer["subscription_id"], answer["state"]) == (known.live.id, known.state)

    @rule(name=_names, state=st.sampled_from(["PAUSED", "ACTIVE", "CANCELLED", "DEAD", "paused"]))
    def set_state(self, name: str, state: str) -> None:
        refused = self.world.refusal("select postbus.set_group_state($1, $2, $3)", self.topic, name, state)
        group = self.groups.get(name)
        if group is None:
            assert refused == "PB406"
        elif (group.state, state) in _TRANSITIONS or state in ("CANCELLED", group.state):
            assert refused is None
            group.state = state
            if state == "CANCELLED":
                for one in (group.live, *group.catch_ups):
                    self._lose(one)
                del self.groups[name]
        else:
            assert refused == "PB433"

    @precondition(lambda self: self.groups)
    @rule(name=_which, part=_which, takes=st.booleans(), vanishes=st.booleans(), lane=st.integers(0, _LANES - 1),
          count=st.integers(1, 4), settles=st.integers(0, 9))  # fmt: skip
    def work(self, name: int, part: int, takes: bool, vanishes: bool, lane: int, count: int, settles: int) -> None:
        """Take the lanes, or continue in them; read some messages of one lane and settle the first of them."""
        group = self._group(name)
        parts = [group.live, *(one for one in group.catch_ups if one.status != "COMPLETED" and not one.is_final)]
        reading = parts[part % len(parts)]
        if takes or not reading.held:
            self._take(group, reading, vanishes)
        held = reading.held.get(lane)
        if held is None:
            return
        result = self.world.run(read(self.world.conn, held.cursor, count, topic=self.topic, lanes=(lane,)))
        assert result.ids == self._in_lane(reading.unread, lane)[: len(result.ids)]
        done = result.ids[:settles]
        is_all = settles >= len(result.ids)
        if not is_all and not done:
            return
        if is_all:
            lost = self.world.run(advance(self.world.conn, [held], result.next, len(done)))
        else:
            assert result.during is not None
            last = result.at[len(done) - 1]
            lost = self.world.run(advance(self.world.conn, [held], result.during, len(done), done=last))
            held.cursor = self._stored(reading.id, lane)
        assert lost == []
        for id in done:
            assert id not in group.completed, "it came twice"
        reading.unread -= set(done)
        reading.settled += len(done)
        group.completed |= set(done)
        self.messages.settle(group.name, done)
        if is_all and not result.more:
            reading.at_end.add(lane)

    @rule(tracking=st.sampled_from(["REFERENCE_COUNTING", "OFFSET_WATERMARK"]))
    def track(self, tracking: str) -> None:
        self.world.value("select postbus.set_topic($1, $2)", self.topic, json.dumps({"tracking": tracking}))

    @precondition(lambda self: self.groups)
    @rule(name=_which)
    def remove(self, name: int) -> None:
        """Remove the group with everything that belongs to it; what it has settled stays settled."""
        group = self._group(name)
        sql = "select removed from postbus.remove_group($1, $2, force => true)"
        assert self.world.value(sql, self.topic, group.name)
        for one in (group.live, *group.catch_ups):
            self._lose(one)
        del self.groups[group.name]

    @precondition(lambda self: self.lost)
    @rule(which=_which)
    def settle_what_is_lost(self, which: int) -> None:
        """Check that a process that has lost a lane changes nothing any more."""
        lane, cursor = self.lost[which % len(self.lost)]
        assert self.world.run(advance(self.world.conn, [lane], cursor, 1)) == [1]

    @precondition(lambda self: self.groups)
    @rule(survivors=st.sets(_names))
    def let_die(self, survivors: set[str]) -> None:
        """Let time pass, until three checks find no heartbeat of some groups."""
        self.later += timedelta(minutes=10)
        alive = [group.live.id for group in self.groups.values() if group.state == "ACTIVE" and group.name in survivors]
        self._heartbeat(alive, self.later)
        for before in (2, 1, 0):
            self._sweep(self.later - timedelta(minutes=before))
        for group in self.groups.values():
            if group.state == "ACTIVE" and group.name not in survivors:
                group.state = "DEAD"

    @precondition(lambda self: self.groups)
    @rule(name=_which)
    def heartbeat(self, name: int) -> None:
        group = self._group(name)
        told = self._heartbeat([group.live.id], self.later)
        assert len(told) == (group.state == "DEAD")
        if told:
            group.state = "ACTIVE"
            self._bound(group, told[0])

    @precondition(lambda self: self.groups)
    @rule(group=_which, start=_starts, which=_which, dry_run=st.booleans())
    def seek(self, group: int, start: str, which: int, dry_run: bool) -> None:
        kind, at, id = self._start(start, which)
        sql = "select postbus.seek($1, $2, $3, $4, $5, $6)"
        sought = self._group(group)
        unread = self._from(kind, at, id)
        assert self.world.value(sql, self.topic, sought.name, kind, at, id, dry_run) == len(unread)
        if not dry_run:
            for one in (sought.live, *sought.catch_ups):
                self._lose(one)
            sought.seek(unread)
            sought.since_at, sought.since_id = at, id

    @precondition(lambda self: self.groups)
    @rule(name=_names, start=st.sampled_from(["FROM_TIMESTAMP", "FROM_MESSAGE_ID", "from_now", ""]))
    def seek_to_nowhere(self, name: str, start: str) -> None:
        """Check that a bad or incomplete start is refused, and changes nothing."""
        assert self.world.refusal("select postbus.seek($1, $2, $3)", self.topic, name, start) == "PB402"

    @precondition(lambda self: any(group.catch_ups for group in self.groups.values()))
    @rule(name=_names, is_wanted=st.booleans())
    def set_catch_up(self, name: str, is_wanted: bool) -> None:
        refused = self.world.refusal("select postbus.set_catch_up($1, $2, $3)", self.topic, name, is_wanted)
        group = self.groups.get(name)
        if group is None:
            assert refused == "PB406"
        elif group.catch_up is None:
            assert refused == "PB433"
        else:
            assert refused is None
            group.catch_up.status = "IN_PROGRESS" if is_wanted else "CANCELLED"

    @rule()
    def sweep(self) -> None:
        self._sweep(self.later)
        for group in self.groups.values():
            lag = self.world.value("select messages from postbus.group_lag($1)", group.live.id)
            assert lag == len(group.live.unread) or (not group.is_lag_exact and lag > len(group.live.unread))

    # Invariants.

    @invariant()
    def all_is_as_expected(self) -> None:
        self.messages.look(self.groups, self.sent)
        self.groups_are_as_expected()
        self.unread_is_as_expected()
        self.catch_ups_are_as_expected()
        self.deliveries_are_as_expected()
        self.message_states_are_as_expected()
        self.outbox_is_as_expected()
        self.single_messages_are_as_expected()

    def groups_are_as_expected(self) -> None:
        found = self.world.fetch("select group_name, subscription_id, state from postbus.groups where topic = $1 "
                                 "and state <> 'CANCELLED'", self.topic)  # fmt: skip
        expected = {(group.name, group.live.id, group.state) for group in self.groups.values()}
        _are_same(found, expected)

    def unread_is_as_expected(self) -> None:
        for group in self.groups.values():
            assert self._unread(group.live.id) == group.live.unread, group
            for one in group.catch_ups:
                if one.status != "COMPLETED" and not one.is_final:
                    assert self._unread(one.id) == one.unread, one

    def catch_ups_are_as_expected(self) -> None:
        for group in self.groups.values():
            rows = self.world.fetch(
                "select u.subscription_id, u.status, s.state, v.processed from postbus.catch_up u "
                "join postbus.catch_ups v using (subscription_id) "
                "join postbus.subscription s on s.id = u.subscription_id where s.catch_up_of = $1",
                group.live.id,
            )
            expected = {
                (one.id, one.status, group.state if one.status == "IN_PROGRESS" else "CANCELLED", one.settled)
                for one in group.catch_ups
            }
            _are_same(rows, expected)

    def deliveries_are_as_expected(self) -> None:
        rows = self.world.fetch("select id, group_name, status, required from postbus.deliveries where topic = $1",
                                self.topic)  # fmt: skip
        expected = {row for one in self.sent for row in self.messages.deliveries(one.id, self.groups)}
        _are_same(rows, expected)

    def message_states_are_as_expected(self) -> None:
        rows = self.world.fetch("select id, required, completed, status from postbus.message_states where topic = $1",
                                self.topic)  # fmt: skip
        expected = {one.id: self.messages.state(one.id, self.groups) for one in self.sent}
        assert {row["id"]: (row["required"], row["completed"], row["status"]) for row in rows} == expected

    def outbox_is_as_expected(self) -> None:
        rows = self.world.fetch(
            "select id, status, required_consumer_groups, completed_consumer_groups from postbus_outbox.outbox "
            "where topic = $1",
            self.topic,
        )
        expected: set[tuple[Any, ...]] = set()
        for one in self.sent:
            required, done, status = self.messages.state(one.id, self.groups)
            left = None if one.id in self.messages.wanted else 0
            expected.add((one.id, status, len(required) or left, len(done)))
        _are_same(rows, expected)
        rows = self.world.fetch(
            "select message_id, group_name, status from postbus_outbox.outbox_consumer_groups where topic = $1",
            self.topic,
        )
        _are_same(rows, {(id, name, "COMPLETED") for name, ids in self.messages.done_by.items() for id in ids})
        sql = "select messages from postbus.zero_subscription_messages() where topic = $1"
        assert (self.world.value(sql, self.topic) or 0) == len({one.id for one in self.sent} - self.messages.wanted)

    def single_messages_are_as_expected(self) -> None:
        """Check that single queries give the same answers: for some messages, since that takes long."""
        for one in self.sent[:: max(len(self.sent) // 3, 1)]:
            rows = self.world.fetch(
                "select $2::bigint, group_name, status, required from postbus.deliveries_of($1, $2)",
                self.topic,
                one.id,
            )
            _are_same(rows, self.messages.deliveries(one.id, self.groups))
            [state] = self.world.fetch("select required, completed, status from postbus.message_state($1, $2)",
                                       self.topic, one.id)  # fmt: skip
            assert tuple(state) == self.messages.state(one.id, self.groups)

    # Helpers.

    def _group(self, which: int) -> Group:
        return self.groups[sorted(self.groups)[which % len(self.groups)]]

    def _note(self, ids: list[int]) -> None:
        rows = self.world.fetch("select id, lane, published_at from postbus.log where topic = $1 and id = any ($2)",
                                self.topic, ids)  # fmt: skip
        assert {row["id"] for row in rows} == set(ids)
        new = [Sent(*row) for row in sorted(rows)]
        self.sent += new
        for group in self.groups.values():
            wanted = {one.id for one in new if group.wants(one)}
            group.live.unread |= wanted
            group.is_lag_exact = group.is_lag_exact and len(wanted) == len(new)

    def _start(self, start: str, which: int) -> tuple[str, datetime | None, int | None]:
        """Return the arguments of a start position."""
        if start == "LATER":
            return "FROM_TIMESTAMP", datetime.now(UTC) + timedelta(days=30), None
        if start == "NEXT_ID":
            last = self.world.value("select last_value from postbus.segment_number where is_called")
            return "FROM_MESSAGE_ID", None, 1024 * ((last or 0) + 1)
        if start in ("FROM_NOW", "FROM_BEGINNING") or not self.sent:
            return ("FROM_NOW" if start == "FROM_NOW" else "FROM_BEGINNING"), None, None
        chosen = self.sent[which % len(self.sent)]
        if start == "FROM_TIMESTAMP":
            return start, chosen.published_at, None
        return start, None, chosen.id

    def _from(self, kind: str, at: datetime | None, id: int | None) -> set[int]:
        """Return what a group that starts there has before it."""
        if kind == "FROM_NOW":
            return set()
        return {one.id for one in self.sent if (at is None or one.published_at >= at) and (id is None or one.id >= id)}

    def _bound(self, group: Group, answer: Any) -> None:
        before = dict(group.live.held)
        missed, skipped, beside = group.bound()
        assert (answer["missed"], answer["skipped"]) == (missed, skipped)
        assert (answer["catch_up_id"] is not None) == (beside is not None)
        if before and not group.live.held:
            self.lost += [(lane, lane.cursor) for lane in before.values()]
        if beside is not None:
            group.catch_ups.append(Reading(answer["catch_up_id"], beside))

    def _lose(self, reading: Reading) -> None:
        self.lost += [(lane, lane.cursor) for lane in reading.held.values()]
        reading.held = {}

    def _take(self, group: Group, reading: Reading, vanishes: bool) -> None:
        """Start a new worker; the one before it has left, or vanished."""
        if vanishes:
            sql = "update postbus.worker set seen_at = clock_timestamp() - interval '1 hour' where name = $1"
            self.world.value(sql, reading.worker)
        else:
            self.world.value("select postbus.leave_groups($1, array[$2::bigint])", reading.worker, reading.id)
        worker = self.world.new_name("w")
        lanes = self.world.run(take(self.world.conn, worker, reading.id))
        is_active = group.state == "ACTIVE" and reading.status == "IN_PROGRESS"
        assert sorted(lane.lane for lane in lanes) == (list(range(_LANES)) if is_active else [])
        if lanes:
            self._lose(reading)
            reading.held = {lane.lane: lane for lane in lanes}
            reading.worker = worker
        else:
            self.world.value("select postbus.leave_groups($1, array[$2::bigint])", worker, reading.id)

    def _heartbeat(self, ids: list[int], later: timedelta) -> list[Any]:
        nothing = ", ".join(["'{}'"] * 7)
        rows = self.world.fetch(f"select * from postbus.group_heartbeat($1, {nothing})", ids)
        # As if it had come later.
        self.world.value(
            "update postbus.subscription set seen_at = seen_at + $2 where id = any ($1) and state = 'ACTIVE'",
            ids,
            later,
        )
        return rows

    def _sweep(self, later: timedelta) -> None:
        self.world.fetch("select * from postbus.sweep_log_as_of($1, clock_timestamp() + $2)", self.storage, later)
        for group in self.groups.values():
            for one in group.catch_ups:
                if one.status == "IN_PROGRESS" and len(one.at_end) == _LANES:
                    assert not one.unread
                    self._lose(one)
                    one.status = "COMPLETED"

    def _in_lane(self, ids: set[int], lane: int) -> list[int]:
        return [one.id for one in self.sent if one.lane == lane and one.id in ids]

    def _stored(self, subscription: int, lane: int) -> str:
        sql = "select cursor::text from postbus.current_cursor where subscription_id = $1 and lane = $2"
        return str(self.world.value(sql, subscription, lane))

    def _unread(self, subscription: int) -> set[int]:
        """Return what a subscription would read, in all lanes."""
        found: list[int] = []
        for lane in range(_LANES):
            cursor = self._stored(subscription, lane)
            while True:
                result = self.world.run(read(self.world.conn, cursor, topic=self.topic, lanes=(lane,)))
                found += result.ids
                if result.next == cursor:
                    break
                cursor = result.next
        assert len(found) == len(set(found)), "one came twice"
        return set(found)


def _are_same(rows: list[Any], expected: set[tuple[Any, ...]]) -> None:
    found = {tuple(row) for row in rows}
    assert (sorted(found - expected), sorted(expected - found)) == ([], [])


_TRANSITIONS = [("ACTIVE", "PAUSED"), ("PAUSED", "ACTIVE")]
_OF = {"subscription": "group_name is not null and topic_id = postbus.topic_id($1) and $1", "topic": "name"}


def test_groups_live_as_the_model_says(world: World) -> None:
    """States, unread messages, catch-ups, deliveries and message states match after each step of any sequence."""
    machine: Any = partial(Lifecycle, world)
    run_state_machine_as_test(machine, settings=examples(25, steps=30))
