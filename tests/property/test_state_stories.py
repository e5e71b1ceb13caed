"""States of messages, in any order of events: all views agree with the rules after each step."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from property.state_model import Seen, StateModel, differences
from support.log_sql import (
    Lane,
    ReadResult,
    advance,
    claim_deferred,
    create_topic,
    defer,
    publish_many,
    read,
    settle_deferred,
    sweep,
    take,
)
from support.pop_sql import Pop, pop

_STEPS = 50
_LANES = 2
_LIVES = ("ACTIVE", "PAUSED")
_GROUPS = "abc"
_STARTS = ["FROM_NOW", "FROM_BEGINNING", "FROM_BEGINNING", "FROM_MESSAGE_ID", "FROM_TIMESTAMP"]
_DEEDS = {
    "publish": 8, "work": 14, "pop": 5, "settle_popped": 6, "subscribe": 6, "die": 3, "resurrect": 4, "seek": 2,
    "redrive": 3, "purge": 1, "force_complete": 1, "set_state": 2, "cancel": 1, "remove": 1, "set_catch_up": 1,
    "set_tracking": 1, "fold": 2, "sweep": 1, "sweep_subscriptions": 1,
}  # fmt: skip
# After a rebase, messages read out of the order of sequences may come again, so there is none beside open ones.
_ENDINGS = [{"publish_open": 2, "commit": 3}, {"rebase": 2}]
_ASKED_FOR = int(os.environ.get("POSTBUS_TEST_EXAMPLES", "0"))
_SEEDS = [35, 41, 51, 62, 71, 123]


class Story:
    """Random actions, applied to a topic and reported to the model."""

    def __init__(self, conn: Any, connect: Any, seed: int) -> None:
        self.conn = conn
        self.connect = connect
        self.chance = random.Random(seed)
        self.deeds = _DEEDS | _ENDINGS[seed % 2]
        self.model = StateModel()
        self.told: list[str] = []
        self.opened: list[Any] = []
        self.popped: list[tuple[str, Pop]] = []
        self.storage = 0

    async def begin(self) -> None:
        tracking = self.chance.choice(["REFERENCE_COUNTING", "OFFSET_WATERMARK"])
        self.storage = await create_topic(
            self.conn, lanes=_LANES, tracking=tracking, retry_initial="0 s", retry_max="0 s", max_attempts=3
        )

    async def step(self) -> bool:
        """Do something. Returns whether there was something to do."""
        name = self.chance.choices(list(self.deeds), list(self.deeds.values()))[0]
        deed: Callable[[], Awaitable[bool | None]] = getattr(self, f"_{name}")
        is_done = await deed() is not False
        if is_done:
            await self._check()
        return is_done

    async def _check(self) -> None:
        rows = await self.conn.fetch("select id from postbus.log where topic = 't'")
        self.model.sent = {row["id"] for row in rows}
        told = self.model.tell(await self._look())
        some = set(self.chance.sample(sorted(told), min(3, len(told))))
        found = await differences(self.conn, "t", told, some)
        assert not found, "\n".join([*self.told, "", *found])

    async def _look(self) -> Seen:
        """Return what the groups and their catch-ups have before them, as reading from their cursors shows it."""
        seen = Seen()
        for group in await self._groups():
            name = group["group_name"]
            if group["state"] in _LIVES:
                seen.lives.add(name)
            for part in await self._parts(group, also_cancelled=True):
                ahead, waits = await self._ahead(part), await self._waiting(part)
                if part["state"] == "CANCELLED":
                    seen.idle |= {(name, id) for id in waits.keys() - seen.waits[name].keys()}
                else:
                    seen.before[name] |= await self._unread(part) - ahead - waits.keys()
                    seen.idle -= {(name, id) for id in waits}
                seen.waits[name] |= waits
        for row in await self.conn.fetch(
            "select d.id, s.group_name from postbus.dead_letter d "
            "join postbus.subscription s on s.id = d.subscription_id"
        ):
            seen.letters[row["group_name"]].add(row["id"])
        return seen

    async def _groups(self) -> list[Any]:
        rows: list[Any] = await self.conn.fetch(
            "select * from postbus.subscription where state <> 'CANCELLED' and catch_up_of is null order by id"
        )
        return rows

    async def _group(self, *states: str) -> Any:
        groups = [group for group in await self._groups() if not states or group["state"] in states]
        return self.chance.choice(groups) if groups else None

    async def _parts(self, group: Any, *, also_cancelled: bool = False) -> list[Any]:
        """Return the group's subscription, and those of its catch-ups."""
        rows: list[Any] = await self.conn.fetch(
            "select * from postbus.subscription "
            "where id = $1 or catch_up_of = $1 and (state <> 'CANCELLED' or $2) order by id",
            group["id"],
            also_cancelled,
        )
        return rows

    async def _unread(self, part: Any) -> set[int]:
        found: set[int] = set()
        for row in await self.conn.fetch(
            "select lane, cursor::text as cursor from postbus.current_cursor where subscription_id = $1", part["id"]
        ):
            cursor = row["cursor"]
            while True:
                result = await read(self.conn, cursor, lanes=(row["lane"],))
                found |= set(result.ids)
                if result.next == cursor or not (result.messages or result.more):
                    break
                cursor = result.next
        return found

    async def _ahead(self, part: Any) -> set[int]:
        rows = await self.conn.fetch(
            "select postbus.first_id(a.sequence) + index as id from postbus.settled_ahead a, unnest(a.indexes) as run, "
            "generate_series(lower(run), upper(run) - 1) as index where a.subscription_id = $1",
            part["id"],
        )
        return {row["id"] for row in rows}

    async def _waiting(self, part: Any) -> dict[int, str]:
        rows = await self.conn.fetch("select * from postbus.deferred where subscription_id = $1", part["id"])

        def status(row: Any) -> str:
            if row["token"] is not None or (row["buffered"] and row["attempts"] == 0):
                return "PENDING"
            return "WAITING" if row["parked"] else "RETRYING"

        return {row["id"]: status(row) for row in rows}

    def _tell(self, *what: Any) -> None:
        self.told.append(" ".join(map(str, what)))

    # Publishing.

    async def _publish(self) -> None:
        keys = [self.chance.choice([None, "x", "y", "z"]) for _ in range(self.chance.randint(1, 4))]
        self._tell("publish", await publish_many(self.conn, *["m"] * len(keys), keys=keys))

    async def _publish_open(self) -> bool:
        if len(self.opened) == 2:
            return False
        other = await self.connect()
        await other.execute("begin")
        keys = [self.chance.choice([None, "x", "y"]) for _ in range(self.chance.randint(1, 3))]
        self._tell("publish in an open transaction", await publish_many(other, *["m"] * len(keys), keys=keys))
        self.opened.append(other)
        return True

    async def _commit(self) -> bool:
        if not self.opened:
            return False
        await self.opened.pop(self.chance.randrange(len(self.opened))).execute("commit")
        self._tell("commit")
        return True

    # Workers.

    async def _work(self) -> bool:
        """Let a worker take the lanes of a group, or of a catch-up, do something in each, and leave."""
        group = await self._group()
        if group is None:
            return False
        part = self.chance.choice(await self._parts(group))
        worker = f"w{len(self.told)}"
        for lane in await take(self.conn, worker, part["id"]):
            deed = self.chance.choice([self._nothing, self._tries_again, self._does_one_ahead, *[self._reads_on] * 4])
            await deed(group["group_name"], part, lane)
        await self.conn.execute("select postbus.leave_groups($1, array[$2::bigint])", worker, part["id"])
        return True

    async def _nothing(self, name: str, part: Any, lane: Lane) -> None:
        pass

    async def _tries_again(self, name: str, part: Any, lane: Lane) -> None:
        for row in await claim_deferred(self.conn, lane, 5, is_alone=self.chance.random() < 0.3):
            outcome = self.chance.choice(["done", "done", "retry", "dead", "release", None])
            if outcome is None or row["alone"] is None:
                continue
            told = await settle_deferred(self.conn, lane, [row["id"]], outcome, error="it failed")
            self._tell(name, part["id"], "tries", row["id"], "again:", *told)
            self._settled(name, {row["id"]: told[0]})

    async def _does_one_ahead(self, name: str, part: Any, lane: Lane) -> None:
        result = await read(self.conn, lane.cursor, 4, lanes=(lane.lane,))
        known = await self._ahead(part) | (await self._waiting(part)).keys()
        free = [(id, at) for id, at in zip(result.ids, result.at, strict=True) if id not in known]
        if free:
            id, (position, index) = self.chance.choice(free)
            await self.conn.execute(
                "select postbus.note_done(array[$1::uuid], array[$2::int], array[$3::bigint], array[$4::int], "
                "array[$4::int + 1])",
                lane.token, lane.lane, position, index,
            )  # fmt: skip
            self._tell(name, part["id"], "does", id, "ahead")
            self._settled(name, {id: "done"})

    async def _reads_on(self, name: str, part: Any, lane: Lane) -> None:
        result = await read(self.conn, lane.cursor, self.chance.randint(1, 4), lanes=(lane.lane,))
        known = await self._ahead(part) | (await self._waiting(part)).keys()
        count = self.chance.randint(0, len(result.ids))
        kinds = {
            id: self.chance.choice(["done"] * 5 + ["retry", "dead", "park", "suspect", "release"])
            for id in result.ids[:count]
            if id not in known
        }
        off = [n for n, id in enumerate(result.ids) if kinds.get(id, "done") != "done"]
        if off:
            told = await defer(self.conn, lane, _only(result, off), *[kinds[result.ids[n]] for n in off])
            assert told is not None
            self._tell(name, part["id"], "defers", dict(zip([result.ids[n] for n in off], told, strict=True)))
            self._settled(name, dict(zip([result.ids[n] for n in off], told, strict=True)))
            if self.chance.random() < 0.15:
                return
        if count == len(result.ids):
            assert await advance(self.conn, [lane], result.next, count) == []
        elif count:
            assert result.during is not None
            assert await advance(self.conn, [lane], result.during, count, done=result.at[count - 1]) == []
        else:
            return
        done = [id for id, kind in kinds.items() if kind == "done"]
        self._tell(name, part["id"], "is done with", done, "up to", result.ids[:count])
        self._settled(name, dict.fromkeys(done, "done"))

    def _settled(self, name: str, told: dict[int, str]) -> None:
        self.model.done[name] |= {id for id, outcome in told.items() if outcome == "done"}
        self.model.given_up[name] |= {id for id, outcome in told.items() if outcome == "dead"}

    # Pops.

    async def _pop(self) -> bool:
        group = await self._group("ACTIVE", "DEAD")
        if group is None:
            return False
        name = group["group_name"]
        popped = await pop(self.conn, self.chance.randint(1, 3), group=name)
        self._tell(name, "pops", popped.ids)
        if popped.ids:
            self.popped.append((name, popped))
        return True

    async def _settle_popped(self) -> bool:
        if not self.popped:
            return False
        name, popped = self.popped.pop(self.chance.randrange(len(self.popped)))
        ids = self.chance.sample(popped.ids, self.chance.randint(1, len(popped.ids)))
        how = self.chance.choice(["ack", "ack", "retry", "dead_letter", "release"])
        if how == "retry":
            rows = await self.conn.fetch("select * from postbus.retry($1, $2, '0 s', 'it failed')", popped.token, ids)
            told = {row["message_id"]: row["outcome"] for row in rows}
        else:
            more = ", 'it failed'" if how == "dead_letter" else ""
            lost = await self.conn.fetchval(f"select postbus.{how}($1, $2{more})", popped.token, ids)
            outcome = {"ack": "done", "dead_letter": "dead", "release": "released"}[how]
            told = {id: outcome for id in ids if how == "release" or id not in lost}
        self._tell(name, how, ids, told)
        self._settled(name, told)
        return True

    # Groups.

    async def _start(self) -> tuple[str, Any, int | None]:
        kind = self.chance.choice(_STARTS)
        if kind in ("FROM_NOW", "FROM_BEGINNING") or not self.model.sent:
            return kind if kind == "FROM_NOW" else "FROM_BEGINNING", None, None
        id = self.chance.choice(sorted(self.model.sent))
        if kind == "FROM_MESSAGE_ID":
            return kind, None, id
        return kind, await self.conn.fetchval("select published_at from postbus.log where id = $1", id), None

    async def _subscribe(self) -> None:
        name, start = self.chance.choice(_GROUPS), await self._start()
        catch_up = json.dumps({"beside_from": self.chance.choice([0, 2, 1_000_000])})
        self._tell("subscribe", name, *start, catch_up)
        await self.conn.execute("select postbus.subscribe('t', $1, $2, $3, $4, catch_up => $5)", name, *start, catch_up)

    async def _seek(self) -> bool:
        group = await self._group()
        if group is None:
            return False
        start = await self._start()
        self._tell("seek", group["group_name"], *start)
        await self.conn.execute("select postbus.seek('t', $1, $2, $3, $4)", group["group_name"], *start)
        return True

    async def _die(self) -> bool:
        """Release what pops of the group have in hand first."""
        group = await self._group("ACTIVE")
        if group is None:
            return False
        self._tell("die", group["group_name"])
        await self.conn.execute(
            "update postbus.deferred set due_at = clock_timestamp() - interval '1 s' where token is not null"
        )
        await self.conn.execute("delete from postbus.sign_of_life where subscription_id = $1", group["id"])
        await self.conn.execute(
            "update postbus.subscription set seen_at = clock_timestamp() - interval '1 hour', missed = 3, "
            "missed_at = clock_timestamp() - interval '1 hour' where id = $1",
            group["id"],
        )
        await self.conn.execute("select postbus.detect_dead($1, clock_timestamp())", self.storage)
        return True

    async def _resurrect(self) -> bool:
        group = await self._group("DEAD")
        if group is None:
            return False
        with_catch_up = self.chance.random() < 0.8
        self._tell("resurrect", group["group_name"], "with" if with_catch_up else "without", "catch-up")
        await self.conn.execute("select postbus.resurrect(array[$1::bigint], $2)", group["id"], with_catch_up)
        return True

    async def _set_state(self) -> bool:
        group = await self._group(*_LIVES)
        if group is None:
            return False
        state = self.chance.choice(_LIVES)
        self._tell("set", group["group_name"], state)
        return await self._try("select postbus.set_group_state('t', $1, $2)", group["group_name"], state)

    async def _cancel(self) -> bool:
        group = await self._group()
        if group is None:
            return False
        self._tell("cancel", group["group_name"])
        return await self._try("select postbus.set_group_state('t', $1, 'CANCELLED')", group["group_name"])

    async def _remove(self) -> bool:
        name = self.chance.choice(_GROUPS)
        self._tell("remove", name)
        return await self._try("select postbus.remove_group('t', $1, force => true)", name)

    async def _set_catch_up(self) -> bool:
        group = await self._group()
        if group is None:
            return False
        is_wanted = self.chance.random() < 0.5
        self._tell("set the catch-up of", group["group_name"], is_wanted)
        return await self._try("select postbus.set_catch_up('t', $1, $2)", group["group_name"], is_wanted)

    async def _try(self, sql: str, *args: Any) -> bool:
        """Return whether it is not refused."""
        try:
            await self.conn.execute(sql, *args)
        except asyncpg.PostgresError:
            self.told.pop()
            return False
        return True

    async def _force_complete(self) -> bool:
        group = await self._group()
        if group is None:
            return False
        name = self.chance.choice([None, group["group_name"]])
        self._tell("force-complete", name)
        await self.conn.execute("select postbus.force_complete('t', '0 s', $1)", name)
        return True

    # Dead letters.

    async def _redrive(self) -> bool:
        group = await self._group()
        sql = "select id from postbus.dead_letter where subscription_id = $1"
        letters = [row["id"] for row in await self.conn.fetch(sql, group["id"])] if group else []
        if not letters:
            return False
        ids = self.chance.sample(sorted(letters), self.chance.randint(1, len(letters)))
        self._tell("redrive", group["group_name"], ids)
        await self.conn.execute("select postbus.redrive('t', $1, group_name => $2)", ids, group["group_name"])
        self.model.given_up[group["group_name"]] -= set(ids)
        return True

    async def _purge(self) -> bool:
        group = await self._group()
        if group is None:
            return False
        self._tell("purge the dead letters of", group["group_name"])
        await self.conn.execute("select postbus.purge_dead_letters('t', group_name => $1)", group["group_name"])
        return True

    # The topic, and the database.

    async def _set_tracking(self) -> None:
        tracking = self.chance.choice(["REFERENCE_COUNTING", "OFFSET_WATERMARK"])
        self._tell("track by", tracking)
        await self.conn.execute("select postbus.set_topic('t', $1)", json.dumps({"tracking": tracking}))

    async def _fold(self) -> None:
        await self.conn.execute("update postbus.cursor set fenced_at = null, at = at - interval '10 minutes'")
        await self._sweep()

    async def _sweep(self) -> None:
        self._tell("sweep")
        await sweep(self.conn, self.storage)

    async def _sweep_subscriptions(self) -> None:
        self._tell("forget subscriptions")
        await self.conn.execute("select postbus.sweep_subscriptions_as_of(clock_timestamp() + interval '400 days')")

    async def _rebase(self) -> None:
        self._tell("rebase")
        await self.conn.execute("select postbus.rebase()")
        self.popped.clear()


def _only(result: ReadResult, numbers: list[int]) -> ReadResult:
    """Return some messages of a read result."""
    return ReadResult(
        messages=[result.messages[n] for n in numbers],
        keys=[result.keys[n] for n in numbers],
        at=[result.at[n] for n in numbers],
    )


def _seeds() -> list[int]:
    """Return the seeds that once found something, or as many new ones as requested."""
    return random.sample(range(1_000_000), _ASKED_FOR) if _ASKED_FOR else _SEEDS


@pytest.mark.parametrize("seed", _seeds())
async def test_all_views_agree_with_the_rules(conn: Any, connect: Any, seed: int) -> None:
    """Groups read, fail, give up, pop, die, return, join late, seek back and end, and the database is restored."""
    story = Story(conn, connect, seed)
    await story.begin()
    for _ in range(_STEPS):
        await story.step()
