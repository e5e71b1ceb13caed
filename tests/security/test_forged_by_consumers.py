"""A consumer's SQL role is not trusted about contents, positions, lanes, or the process that calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from postbus.embedded import EmbeddedPostgres
from security.forging import SECRET, Stage
from support.fix_database import fresh_database
from support.log_sql import cursor_of, publish_many, subscribe

pytestmark = pytest.mark.attack("forging as a consumer")


@pytest.fixture(scope="module")
def stage(server: EmbeddedPostgres) -> Iterator[Stage]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        made = Stage(runner, runner.run(stack.enter_async_context(fresh_database(server))))
        yield made
        made.close()
        runner.run(stack.aclose())


@pytest.fixture(autouse=True)
def before(stage: Stage) -> dict[str, Any]:
    return stage.facts()


# Lanes of another process

_ADVANCE = (
    "select postbus.advance(array[$1::bigint], array[$2::int], $3::uuid[], array[$4::bigint], array[$5], $6, $7, "
    "array[$8::bigint])"
)


def _advance(
    stage: Stage, lane: Any, tokens: Any, cursor: str, passed: int = 1, done: tuple[Any, Any] = (None, None)
) -> Any:
    return stage.attack(
        _ADVANCE, lane.subscription, lane.lane, tokens, lane.number, cursor, [done[0]], [done[1]], passed
    )


@pytest.mark.parametrize("token", ["none", "null", "random", "of its own lane", "of the other lane", "several"])
def test_lane_cannot_be_moved_without_its_token(stage: Stage, before: dict[str, Any], token: str) -> None:
    """It moves neither forwards nor backwards, even with the right number of its ledger, which can be guessed."""
    victim, other = stage.theirs
    given: dict[str, list[Any]] = {
        "none": [],
        "null": [None],
        "random": [uuid4()],
        "of its own lane": [stage.mine[0].token],
        "of the other lane": [other.token],
        "several": [uuid4(), stage.mine[0].token],
    }
    tokens = given[token]
    for cursor in (stage.log.next, victim.cursor):
        told = _advance(stage, victim, tokens, cursor)
        assert told == [1] if len(tokens) < 2 else told

    assert stage.facts() == before


def test_advance_without_tokens_is_closed(stage: Stage, before: dict[str, Any]) -> None:
    """This is the call of earlier versions, for which a number was enough."""
    lane = stage.theirs[0]
    sql = "select postbus.advance(array[$1::bigint], array[$2::int], array[$3::bigint], array[$4], $5, $6, '{1}')"
    told = stage.attack(sql, lane.subscription, lane.lane, lane.number, stage.log.next, [None], [None])

    assert isinstance(told, asyncpg.UndefinedFunctionError)
    assert stage.facts() == before


@pytest.mark.parametrize(
    "sql",
    [
        "select postbus.release_lanes(array[$1::uuid])",
        "select postbus.clear_caution($1::uuid)",
        "select postbus.hold_lane($1::uuid)",
        "select count(*) from postbus.deferred_of(array[$1::uuid])",
        "select count(*) from postbus.claim_deferred(array[$1::uuid], 10)",
        "select count(*) from postbus.claim_deferred(array[$1::uuid], 10, is_alone => true)",
        "select postbus.extend_deferred(array[$1::uuid], array[{retried}])",
        "select postbus.settle_deferred({billing}, {lane}, $1::uuid, array[{retried}], 'done')",
        "select postbus.settle_deferred({billing}, {lane}, $1::uuid, array[{retried}], 'dead')",
        "select postbus.settle_deferred({billing}, {lane}, $1::uuid, array[{retried}], 'release')",
        "select postbus.settle_deferred({billing}, {lane}, $1::uuid, array[{retried}], 'retry', interval '1 hour')",
        "select postbus.not_alone($1::uuid, {retried})",
        "select postbus.not_alone($1::uuid)",
        "select postbus.note_done(array[$1::uuid], array[{lane}], array[{position}], '{{0}}', '{{2}}')",
        "select postbus.report_catch_up($1::uuid, 1, interval '1 s')",
        "select postbus.defer({billing}, {lane}, $1::uuid, '{{dead}}', array[{fresh}], array[{position}], '{{0}}', "
        "'{{no}}', '{{null}}')",
        "select postbus.ack($1::uuid, array[{claimed}])",
        "select postbus.ack_leases(array[$1::uuid])",
        "select count(*) from postbus.retry($1::uuid, array[{claimed}])",
        "select postbus.dead_letter($1::uuid, array[{claimed}], 'no')",
        "select postbus.release($1::uuid, array[{claimed}])",
        "select postbus.extend(array[$1::uuid], interval '1 hour')",
    ],
)
@pytest.mark.parametrize("token", ["null", "guessed", "its own"])
def test_leases_cannot_be_changed_without_their_token(
    stage: Stage, before: dict[str, Any], sql: str, token: str
) -> None:
    """Only a caller who knows the random token of a lane or lease can change it."""
    lane = stage.theirs[0]
    fresh = stage.ids_in(lane.lane)[1]
    sql = sql.format(
        billing=stage.billing, lane=lane.lane, retried=stage.retried, fresh=fresh, position=stage.sequence_of(fresh),
        claimed=stage.claimed["ids"][0],
    )  # fmt: skip
    mine = None if "note_done" in sql or "release_lanes" in sql else stage.mine[lane.lane].token  # otherwise it may
    stage.attack(sql, {"null": None, "guessed": uuid4(), "its own": mine}[token])

    assert stage.facts() == before


def test_no_role_can_see_tokens_and_secrets(stage: Stage) -> None:
    """Consumers and observers cannot read the tables, and no view shows them."""
    for conn in (stage.consumer, stage.observer):
        for table in ("lane", "lease", "worker", "sweeper", "sink_away", "deferred"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                stage.run(conn.fetch(f"select * from postbus.{table}"))
    shown = stage.run(stage.owner.fetch(
        "select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace in ('postbus'::regnamespace, 'postbus_outbox'::regnamespace) and c.relkind = 'v'"
        " and (a.attname in ('token', 'secret') or a.atttypid = 'uuid'::regtype)"
    ))  # fmt: skip
    assert [tuple(row) for row in shown] in ([], [("webhooks", "secret")])


# Impossible positions, in a lane of one's own


_TYPES = {
    "sequence": "bigint", "txid": "xid8", "snapshot": "pg_snapshot", "done_sequence": "bigint", "since_bound": "bigint",
    "since_at": "timestamptz", "since_id": "bigint",
}  # fmt: skip
_COLUMNS = (
    "seen", "target", "done_sequence", "done_index", "since_bound", "since_at", "since_id", "until", "since_snapshot"
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        "seen.sequence = 9007199254740992",
        "seen.sequence = 9895604649984",
        "seen.sequence = -1",
        "seen.sequence = null",
        "seen.txid = 4611686018427387904",
        "seen.txid = null",
        "seen.snapshot = 1000000000:1000000000:",
        "seen.snapshot = 3:3:",
        "seen.snapshot = null",
        "seen = null",
        "target = (,,)",
        "until = (,,)",
        "target.sequence = 9007199254740992",
        "target.txid = 4611686018427387904",
        "target.snapshot = 3:1000000000:",
        "done_sequence = 9223372036854775807",
        "done_sequence = -5",
        "since_bound = 9223372036854775807",
        "since_at = 2126-01-01",
        "since_id = 9223372036854775807",
        "until",
    ],
)
def test_impossible_position_is_refused(stage: Stage, before: dict[str, Any], change: str) -> None:
    """It would skip later messages, or stop the sweep of the whole storage."""
    name, _, value = change.partition(" = ")
    field, _, part = name.partition(".")
    seen = "(select row(p.sequence, p.txid, p.snapshot)::postbus.log_position from seen p)"
    type = _TYPES.get(part or field, "postbus.log_position")
    forged = f"'{value}'::{type}" if value not in ("", "null") else f"null::{type}"
    if part:
        forged = seen.replace(f"p.{part}", forged)
    columns = [
        forged if column == field and change != "until" else seen if column in ("seen", field) else "null"
        for column in _COLUMNS
    ]
    cursor = stage.run(stage.owner.fetchval(
        "with seen as (select ((($1::text::postbus.log_cursor)).seen).*) "
        f"select row({', '.join(columns)})::postbus.log_cursor::text", stage.log.next,
    ))  # fmt: skip
    told = _advance(stage, stage.mine[0], [stage.mine[0].token], cursor)

    assert isinstance(told, asyncpg.PostgresError)
    assert told.sqlstate == "PB402"
    assert stage.facts() == before
    mine = stage.run(cursor_of(stage.owner, stage.mine[0].subscription))
    assert mine == stage.mine[0].cursor


@pytest.mark.parametrize("passed", [-1, 2**40, 2**62, None])
@pytest.mark.parametrize("done", [(None, None), (2**62, 0), (5, -7)])
def test_group_cannot_have_passed_more_than_exists(stage: Stage, passed: int | None, done: tuple[Any, Any]) -> None:
    """False numbers of passed messages would make lags in others' views overflow."""
    lane = stage.mine[0]
    told = _advance(stage, lane, [lane.token], stage.log.next, passed, done)  # type: ignore[arg-type]

    assert isinstance(told, asyncpg.PostgresError)
    assert told.sqlstate == "PB402"


def test_oversized_cursor_is_refused(stage: Stage) -> None:
    """A snapshot may list transactions, but not hundreds of thousands."""
    lane = stage.mine[0]
    seen = stage.log.next.partition('",')[0]
    told = _advance(stage, lane, [lane.token], f'{seen}",,{" " * 2_000_000}5,0,,,,,)')

    assert isinstance(told, asyncpg.PostgresError)
    assert told.sqlstate == "PB402"


# Contents

_PUT_OFF = (
    "select postbus.defer($1, $2, $3, array[$4], array[$5::bigint], array[$6::bigint], '{1 h}', '{no}', '{null}')"
)
_KINDS = ("retry", "park", "release", "suspect", "dead")


def _put_off(stage: Stage, kind: str, id: int, position: int) -> Any:
    lane = stage.mine[0]
    return stage.attack(_PUT_OFF, lane.subscription, lane.lane, lane.token, kind, id, position)


@pytest.mark.parametrize("kind", ["retry", "dead"])
def test_contents_cannot_be_given_by_the_caller(stage: Stage, before: dict[str, Any], kind: str) -> None:
    """The call with contents is closed, even to the lane's holder."""
    lane, id = stage.mine[0], stage.ids_in(0)[0]
    told = stage.attack(
        "select postbus.defer($1, $2, $3, array[$4], array[$5::bigint], array[$6::bigint], array[now()], '{k}', "
        "'{null}', '{text/plain}', '{null}', array['forged'::bytea], '{0}', '{no}', '{null}')",
        lane.subscription, lane.lane, lane.token, kind, id, stage.sequence_of(id),
    )  # fmt: skip
    assert isinstance(told, asyncpg.UndefinedFunctionError)
    assert stage.facts() == before


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    "which",
    [
        "of another topic",
        "of another lane",
        "that never was",
        "of a later position",
        "before the log",
        "behind the segment",
        "of another segment",
    ],
)
def test_only_messages_of_the_lane_can_be_deferred(stage: Stage, before: dict[str, Any], which: str, kind: str) -> None:
    """A message that is not in the segment, or belongs to another topic or lane, is not stored."""
    here = stage.ids_in(0)[0]
    there = stage.ids_in(0, topic="elsewhere")[0]
    beside = stage.ids_in(1)[0]
    position = stage.sequence_of(here)
    id, at = {
        "of another topic": (there, stage.sequence_of(there)),
        "of another lane": (beside, stage.sequence_of(beside)),
        "that never was": (here + 2**30, position + 2**20),
        "of a later position": (here, position + (1 << 43)),
        "before the log": (here, -position),
        "behind the segment": (here + 2, position),
        "of another segment": (here + 1024, position),
    }[which]
    told = _put_off(stage, kind, id, at)

    assert told == ["gone"]
    assert stage.facts() == before


@pytest.mark.parametrize("kind", ["", "done", "deleted", "RETRY", None])
def test_unknown_kind_of_deferral_is_refused(stage: Stage, before: dict[str, Any], kind: Any) -> None:
    """Only retry, park, release, suspect and dead exist."""
    id = stage.ids_in(0)[0]
    told = _put_off(stage, kind, id, stage.sequence_of(id))

    assert isinstance(told, asyncpg.PostgresError)
    assert told.sqlstate == "PB402"
    assert stage.facts() == before


@pytest.mark.parametrize("delay", ["-1 s", "infinity", "1000000 years", "-infinity"])
def test_deferral_cannot_have_a_bad_delay(stage: Stage, before: dict[str, Any], delay: str) -> None:
    """Negative, infinite and absurdly long delays are refused."""
    lane, id = stage.mine[0], stage.ids_in(0)[0]
    told = stage.attack(
        _PUT_OFF.replace("{1 h}", "{" + delay + "}"),
        lane.subscription, lane.lane, lane.token, "retry", id, stage.sequence_of(id),
    )  # fmt: skip
    assert isinstance(told, asyncpg.PostgresError)
    assert stage.facts() == before


@pytest.mark.parametrize("kind", _KINDS)
def test_deferred_message_has_the_content_of_the_log(stage: Stage, kind: str) -> None:
    """Headers, keys and types come from the log, whatever the caller would like."""
    number = _KINDS.index(kind)

    async def attack() -> tuple[Any, Any]:
        transaction = stage.owner.transaction()
        await transaction.start()
        [id] = await publish_many(
            stage.owner, f"true {number}", keys=["a"], headers=['{"h": "x"}'], correlation_ids=["c"]
        )
        position = await stage.owner.fetchval("select sequence from postbus.segment order by sequence desc limit 1")
        lane = await stage.owner.fetchval("select lane from postbus.segment where sequence = $1", position)
        mine = stage.mine[lane]
        told = await stage.owner.fetchval(_PUT_OFF, mine.subscription, lane, mine.token, kind, id, position)
        table = "dead_letter" if kind == "dead" else "deferred"
        stored = await stage.owner.fetchrow(
            f"select key, correlation_id, headers::text, payload from postbus.{table} where id = $1", id
        )
        await transaction.rollback()
        return told, stored

    told, stored = stage.run(attack())
    assert told == [
        {"retry": "retried", "park": "parked", "release": "released", "suspect": "suspected"}.get(kind, kind)
    ]
    assert tuple(stored) == ("a", "c", '{"h": "x"}', f"true {number}".encode())


def test_settled_messages_cannot_be_brought_back(stage: Stage) -> None:
    """The holder of a lane can neither defer nor bury messages behind the group's cursor."""

    async def attack() -> list[Any]:
        transaction = stage.consumer.transaction()
        await transaction.start()
        lane, id = stage.mine[0], stage.ids_in(0)[0]
        assert await stage.consumer.fetchval(
            _ADVANCE, lane.subscription, lane.lane, [lane.token], lane.number, stage.log.next, [None], [None], 2
        ) == []  # fmt: skip
        told = [
            await stage.consumer.fetchval(
                _PUT_OFF, lane.subscription, lane.lane, lane.token, kind, id, stage.sequence_of(id)
            )
            for kind in ("retry", "dead")
        ]
        await transaction.rollback()
        return told

    assert stage.run(attack()) == [["gone"], ["gone"]]


@pytest.mark.parametrize(
    ("position", "start", "stop"),
    [
        ("here", 0, 2**31 - 1),
        ("here", None, None),
        ("here", -(2**31), 1024),
        ("here", 2, 1024),
        ("elsewhere", 0, 1),
        ("nowhere", 0, 1),
    ],
)
def test_messages_settled_ahead_must_be_part_of_a_segment(stage: Stage, position: str, start: Any, stop: Any) -> None:
    """Unlimited ranges would be repeated one by one to the lane's next holder."""
    here, there = stage.sequence_of(stage.ids_in(0)[0]), stage.sequence_of(stage.ids_in(0, topic="elsewhere")[0])
    sequence = {"here": here, "elsewhere": there, "nowhere": 2**62}[position]
    stage.attack(
        "select postbus.note_done(array[$1::uuid], '{0}', array[$2::bigint], array[$3::int], array[$4::int])",
        stage.mine[0].token, sequence, start, stop,
    )  # fmt: skip
    noted = stage.run(stage.owner.fetch("delete from postbus.settled_ahead returning sequence, indexes::text"))
    assert [tuple(row) for row in noted] in ([], [(here, "{[0,2)}")])
    assert noted == [] or start != 2


# Processes


@pytest.mark.parametrize(
    "sql",
    [
        "select postbus.heartbeat('honest', 'host', 1, '{}', $1)",
        "select postbus.sign_off('honest', $1)",
        "select * from postbus.lease_lanes('honest', array[{billing}], '{}', secret => $1)",
        "select postbus.leave_groups('honest', array[{billing}], secret => $1)",
        "select postbus.leave_groups('honest', array[{billing}], true, secret => $1)",
        "select postbus.note_sweeper('serve', 'host', 1, $1)",
        "select postbus.forget_sweeper('serve', $1)",
        "select postbus.note_sink_away('t', 'billing', 'relay', 'elsewhere', 'another error', $1)",
        "select postbus.forget_sink_away('t', 'billing', 'relay', $1)",
    ],
)
@pytest.mark.parametrize("secret", ["none", "guessed"])
def test_nobody_can_speak_for_another_process(stage: Stage, before: dict[str, Any], sql: str, secret: str) -> None:
    """A caller without its secret can neither keep it alive nor end it, nor take or release lanes in its name."""
    told = stage.attack(sql.replace("{billing}", str(stage.billing)), None if secret == "none" else uuid4())

    assert isinstance(told, asyncpg.PostgresError)
    assert told.sqlstate == "PB403"
    assert str(SECRET) not in str(told)
    assert stage.facts() == before


@pytest.mark.parametrize(
    "sql",
    ["select postbus.heartbeat('honest', 'host', 1, '{}')", "select postbus.sign_off('honest')",
     "select postbus.leave_groups('honest', array[{billing}])", "select postbus.forget_sweeper('serve')",
     "select postbus.forget_sink_away('t', 'billing', 'relay')"],
)  # fmt: skip
def test_calls_without_secrets_do_not_affect_other_processes(stage: Stage, before: dict[str, Any], sql: str) -> None:
    """These are the calls of earlier versions, for which a name was enough."""
    told = stage.attack(sql.replace("{billing}", str(stage.billing)))

    assert isinstance(told, asyncpg.PostgresError)
    assert stage.facts() == before


# Texts and numbers

_LONG = "x" * 2_000_000
_ESCAPE = "a\x1b[2Jb\nc"


@pytest.mark.parametrize("text", [_LONG, _ESCAPE, "", None], ids=["long", "escape", "empty", "null"])
@pytest.mark.parametrize(
    "sql",
    [
        "select postbus.heartbeat($1, 'host', 1, '{}')",
        "select * from postbus.lease_lanes($1, array[{billing}], '{}')",
        "select postbus.note_sweeper($1, 'host', 1)",
        "select postbus.note_sink_away('t', 'billing', $1, 'sink', 'error')",
        "select * from postbus.group_heartbeat('{}', array[{billing}], array[$1], '{1}', '{1}', '{1}', '{1}', '{1}')",
        "select postbus.note_failure($1, 0, 'error')",
    ],
)
def test_too_long_or_unprintable_names_are_refused(
    stage: Stage, before: dict[str, Any], sql: str, text: str | None
) -> None:
    """They would fill the disk or attack a terminal."""
    told = stage.attack(sql.replace("{billing}", str(stage.billing)), text)

    assert isinstance(told, asyncpg.PostgresError)
    assert "\x1b" not in str(told)
    assert len(str(told)) < 1000
    assert stage.facts() == before


@pytest.mark.parametrize("length", [301, 10_000, 2_000_000])
@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from postbus.claim('q', {member}, 1)",
        "select count(*) from postbus.claim_suspects('q', {member})",
        "select count(*) from postbus.pop('q', member => {member})",
        "select count(*) from postbus.pop('elsewhere', 'evil', member => {member})",
        "select count(*) from postbus.pop_scope('evil', pattern => '#', member => {member})",
    ],
)
def test_long_member_names_are_refused(stage: Stage, before: dict[str, Any], sql: str, length: int) -> None:
    """An expired lease's member goes into an index: a longer name would stop the return of every lease."""
    member = f"(select left(string_agg(md5(n::text), ''), {length}) from generate_series(1, {length // 32 + 1}) as n)"
    told = stage.attack(sql.format(member=member))

    assert isinstance(told, asyncpg.PostgresError)
    assert told.sqlstate == "PB402"
    assert stage.facts() == before


@pytest.mark.parametrize(("count", "size"), [(2**31 - 1, 2**62), (10_001, 67_108_865)])
def test_pop_is_bounded_whatever_it_asks_for(stage: Stage, count: int, size: int) -> None:
    """A whole log in the pull buffer of a group would fill the disk."""

    async def attack() -> tuple[int, int]:
        await subscribe(stage.consumer, "popper", topic="elsewhere")
        await stage.owner.execute(
            "select postbus.publish_many('elsewhere', array_fill('x'::bytea, array[1000])) from generate_series(1, 25)"
        )
        rows = await stage.consumer.fetch(
            "select * from postbus.pop('elsewhere', 'popper', max_count => $1, max_bytes => $2)", count, size
        )
        buffered = await stage.owner.fetch("delete from postbus.deferred where buffered returning id")
        await stage.owner.execute("select postbus.remove_group('elsewhere', 'popper', true)")
        return len(rows[0]["ids"] or []), len(buffered)

    taken, buffered = stage.run(attack())
    assert 0 < taken <= 10_000
    assert buffered < 25_000


@pytest.mark.parametrize("text", [_LONG, _ESCAPE], ids=["long", "escape"])
def test_other_texts_are_cut_to_one_line(stage: Stage, text: str) -> None:
    """Logs and terminals show hosts and topics of a process, and who stopped a group."""

    async def attack() -> list[str]:
        transaction = stage.owner.transaction()
        await transaction.start()
        await stage.owner.execute("select postbus.heartbeat('talker', $1, 1, array[$1])", text)
        await stage.owner.execute("select postbus.note_sweeper('talker', $1, 1)", text)
        await stage.owner.execute("select postbus.note_sink_away($1, $1, 'talker', $1, $1)", text)
        await stage.owner.execute("select * from postbus.send_heartbeat('evil', 'elsewhere', stopped_by => $1)", text)
        kept = await stage.owner.fetchrow(
            "select (select host from postbus.worker where name = 'talker'),"
            " (select host from postbus.sweeper where name = 'talker'),"
            " (select sink from postbus.sink_away where process = 'talker'),"
            " (select max(stopped_by) from postbus.subscription)"
        )
        large = await stage.owner.fetchval(
            "select max(pg_column_size(kept)) from (select w::text as kept from postbus.worker w"
            " union all select a::text from postbus.sink_away a) as one"
        )
        await transaction.rollback()
        assert large < 10_000
        return [str(one) for one in kept]

    for kept in stage.run(attack()):
        assert 0 < len(kept) <= 500
        assert kept.isprintable()


@pytest.mark.parametrize("option", ["batch_size", "max_rate", "target_latency"])
def test_oversized_group_options_are_refused(stage: Stage, before: dict[str, Any], option: str) -> None:
    """A number may be written with spaces, but not with a million of them."""
    sql = "select postbus.subscribe('t', 'evil', catch_up => jsonb_build_object($1::text, repeat(' ', 1000000) || '1'))"
    told = stage.attack(sql, option)

    assert isinstance(told, asyncpg.PostgresError)
    assert told.sqlstate == "PB402"
    assert stage.facts() == before


@pytest.mark.parametrize("counter", ["-1", "NaN", "Infinity", "1e300", "9000000000000000000"])
@pytest.mark.parametrize("index", range(5))
def test_counters_of_members_must_be_valid_numbers(
    stage: Stage, before: dict[str, Any], index: int, counter: str
) -> None:
    """An invalid or huge one would break every sum of them."""
    given = ["1"] * 5
    given[index] = counter
    values = ", ".join(f"'{{{one}}}'" for one in given)
    told = stage.attack(f"select * from postbus.group_heartbeat('{{}}', array[{stage.billing}], '{{m}}', {values})")

    assert isinstance(told, asyncpg.PostgresError)
    assert stage.facts() == before


@pytest.mark.parametrize(
    ("job", "storage"), [("sweep", 99), ("drop_partitions", 0), ("'; drop", 0), ("sweep", -1), ("sweep_log", 2**31 - 1)]
)
def test_failures_can_be_reported_only_for_known_jobs(
    stage: Stage, before: dict[str, Any], job: str, storage: int
) -> None:
    """Unknown jobs and storages are refused."""
    told = stage.attack("select postbus.note_failure($1, $2, 'no')", job, storage)

    assert isinstance(told, asyncpg.PostgresError)
    assert stage.facts() == before


@pytest.mark.parametrize("outcome", ["", "DONE", "lost", None])
def test_unknown_outcome_of_a_retry_is_refused(stage: Stage, before: dict[str, Any], outcome: str | None) -> None:
    """A retry ends as one of the known outcomes."""
    lane = stage.mine[0]
    told = stage.attack(
        "select postbus.settle_deferred($1, $2, $3, array[1], $4)", lane.subscription, lane.lane, lane.token, outcome
    )
    assert isinstance(told, asyncpg.PostgresError)
    assert stage.facts() == before
