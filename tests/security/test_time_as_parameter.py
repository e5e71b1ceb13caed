"""Time as a parameter: nobody can make Postbus deliver early, forget, drop or end anything by giving a time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from postbus._db.migrator import migrate
from postbus.embedded import EmbeddedPostgres
from support.fix_database import fresh_database
from support.log_sql import create_topic, publish_many, subscribe, take

pytestmark = pytest.mark.attack("time as a parameter of SQL functions")

_VIEWS = (
    "topics",
    "messages",
    "dead_letters",
    "workers",
    "groups",
    "members",
    "catch_ups",
    "scopes",
    "inbox",
    "sweep_jobs",
)
ROLES = ("producer", "consumer", "observer", "operator", "admin")


class Stage:
    """A database with one of everything that time ends, and a user of each role."""

    def __init__(self, runner: asyncio.Runner, dsn: str) -> None:
        self._runner = runner
        self.owner = self.run(asyncpg.connect(dsn))
        self.run(migrate(self.owner))  # which creates the roles of this database
        self.users: dict[str, Any] = {}
        names = {role: f"{role}_{secrets.token_hex(6)}" for role in ROLES}
        for role, name in names.items():
            self.fetch(self.owner, f"create role {name} login in role {self.role(role)}")
            self.users[role] = self.run(asyncpg.connect(dsn, user=name))
        self._names = names
        self.storage = 0
        self.groups: list[int] = []
        self.scratch = 0
        self.run(self._publish())
        self.before = self.facts()

    def role(self, role: str) -> str:
        """Return the name of a role of this database."""
        return str(self.value(self.owner, "select postbus.role_name($1)", role))

    def run(self, act: Any) -> Any:
        return self._runner.run(act)

    def fetch(self, conn: Any, sql: str, *args: Any) -> list[Any]:
        return list(self.run(conn.fetch(sql, *args)))

    def value(self, conn: Any, sql: str, *args: Any) -> Any:
        return self.run(conn.fetchval(sql, *args))

    def attack(self, role: str, sql: str, *args: Any) -> asyncpg.PostgresError | None:
        """Return the error with which the server refuses this, or None if it does not."""
        try:
            self.fetch(self.users[role], sql, *args)
        except asyncpg.PostgresError as error:
            return error
        return None

    def facts(self) -> dict[str, int]:
        """Return the facts. Nothing among them is due, or expired, for hours."""
        [row] = self.fetch(
            self.owner,
            """select (select count(*) from postbus.delayed where due_at > clock_timestamp() + interval '1 year'
                         and topic_id = postbus.topic_id('later')) as scheduled,
                      (select count(*) from postbus.delayed where trial is not null) as suspects,
                      (select count(*) from postbus.lease where member = 'honest') as leases,
                      (select count(*) from postbus.dedup) as dedup_keys,
                      (select count(*) from postbus.finished) as finished,
                      (select count(*) from postbus.inbox where consumer = 'honest') as inbox_records,
                      (select count(*) from postbus.log where topic = 'log') as log_messages,
                      (select count(*) from postbus.deferred r join postbus.subscription s on s.id = r.subscription_id
                        where s.group_name = 'audit' and r.token is null
                          and r.due_at > clock_timestamp() + interval '20 hours') as retries,
                      (select count(*) from postbus.subscription where group_name = 'audit' and state = 'ACTIVE'
                         and seen_at between clock_timestamp() - interval '1 minute' and clock_timestamp()) as living,
                      (select count(*) from postbus.subscription where state = 'CANCELLED') as cancelled,
                      (select count(*) from postbus.subscription where state = 'DEAD') as dead,
                      (select count(*) from postbus.worker) as workers,
                      (select count(*) from postbus.dead_letter) as dead_letters,
                      (select count(*) from postbus.loss) as losses""",
        )
        return dict(row)

    def maintain(self) -> None:
        """Do what workers do all the time."""
        for sql in (
            "postbus.sweep()",
            "postbus.return_expired()",
            f"postbus.sweep_log({self.storage})",
            "postbus.sweep_subscriptions()",
        ):
            self.fetch(self.users["consumer"], f"select * from {sql}")

    def look(self) -> None:
        """Check that a client that knows the years from 1 to 9999 can read every view."""
        for view in _VIEWS:
            self.fetch(self.users["admin"], f"select * from postbus.{view}")
        self.fetch(self.users["observer"], "select * from postbus.group_metrics('scratch.log', 'scratch')")

    def close(self) -> None:
        for conn in self.users.values():
            self.run(conn.close())
        for name in self._names.values():
            self.fetch(self.owner, f"drop owned by {name} cascade")
            self.fetch(self.owner, f"drop role {name}")
        self.run(self.owner.close())

    async def _publish(self) -> None:
        conn = self.owner
        for statement in (
            "select postbus.create_topic('jobs', '{\"retention\": \"1 hour\"}')",
            "select postbus.publish('jobs', 'x'::text, dedup_key => 'd')",
            "select postbus.ack(c.token, c.ids) from postbus.claim('jobs', 'honest', 1) as c",
            "select postbus.publish('jobs', 'y'::text)",
            "select postbus.claim('jobs', 'honest', 1, lease => '1 hour')",
            "select postbus.publish('later', 'z'::text, deliver_at => clock_timestamp() + interval '5 years')",
            "select postbus.inbox_once('honest', 'm')",
            "select postbus.heartbeat('honest', 'host', 1, '{}')",
            "select postbus.create_token('old', 'hash', 'old', '{admin}', expires_in => '1 microsecond')",
        ):
            await conn.execute(statement)
        for topic in ("log", "tried", "scratch.log"):
            await create_topic(conn, topic)
            await subscribe(conn, "audit" if topic != "scratch.log" else "scratch", topic=topic)
            await publish_many(conn, "a", topic=topic)
        await conn.execute(
            "select postbus.retry(p.token, p.ids, '1 day', 'no') from postbus.pop('tried', 'audit') as p "
            "where p.token is not null"
        )
        self.storage = await conn.fetchval("select storage_id from postbus.topic where name = 'log'")
        self.groups = [
            row[0] for row in await conn.fetch("select id from postbus.subscription where group_name = 'audit'")
        ]
        await conn.execute("select postbus.subscribe_scope('scoped', pattern => 'scratch.#')")
        self.scratch = await conn.fetchval("select id from postbus.subscription where group_name = 'scratch'")
        await subscribe(conn, "gone", topic="log")
        await conn.execute("select postbus.set_group_state('log', 'gone', 'CANCELLED')")


@pytest.fixture(scope="module")
def stage(server: EmbeddedPostgres) -> Iterator[Stage]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        made = Stage(runner, runner.run(stack.enter_async_context(fresh_database(server))))
        yield made
        made.close()
        runner.run(stack.aclose())


# Calls from when time was a parameter of these functions, by name and by position, with their effect.
NINE_YEARS = "clock_timestamp() + interval '9 years'"
_NOTHING = ", ".join(["'{}'"] * 7)
CALLS = [
    # unconsumed messages are dropped, groups die
    f"select * from postbus.sweep_log({{storage}}, as_of => {NINE_YEARS})",
    f"select * from postbus.sweep_log({{storage}}, {NINE_YEARS})",
    "select * from postbus.sweep_log({storage}, as_of => 'infinity')",
    # deduplication keys, inbox records, finished messages and processes are forgotten
    f"select * from postbus.sweep(as_of => {NINE_YEARS})",
    f"select * from postbus.sweep(1000, {NINE_YEARS})",
    "select * from postbus.sweep(as_of => 'infinity')",
    f"select postbus.sweep_subscriptions(as_of => {NINE_YEARS})",
    f"select postbus.sweep_subscriptions({NINE_YEARS})",
    # others' leases end
    f"select postbus.return_expired(as_of => {NINE_YEARS})",
    f"select postbus.return_expired(1000, '-infinity', {NINE_YEARS})",
    # scheduled messages come early
    "select * from postbus.claim('later', 'm', 1, as_of => '2041-01-01')",
    "select * from postbus.claim('later', 'm', 1, null, null, 1000, '2041-01-01'::timestamptz)",
    "select * from postbus.claim_suspects('later', 'm', as_of => '2041-01-01')",
    "select postbus.suspected(array['later'], as_of => '2041-01-01')",
    "select * from postbus.pop('later', as_of => '2041-01-01')",
    "select * from postbus.pop('tried', 'audit', as_of => '2041-01-01')",
    "select * from postbus.pop_scope('audit', pattern => '#', as_of => '2041-01-01')",
    "select * from postbus.claim_deferred(array[gen_random_uuid()], 10, as_of => '2041-01-01')",
    "select * from postbus.continue_moves(as_of => '2041-01-01')",
    # groups are taken for DEAD, or for alive forever
    "select * from postbus.group_heartbeat({groups}, {nothing}, as_of => '-infinity')",
    "select * from postbus.group_heartbeat({groups}, {nothing}, as_of => 'infinity')",
    "select * from postbus.send_heartbeat('audit', 'log', as_of => 'infinity')",
    "select postbus.leave_groups('m', {groups}, true, as_of => 'infinity')",
    "select * from postbus.resurrect({groups}, as_of => 'infinity')",
    f"select * from postbus.lease_lanes('m', {{groups}}, '{{{{}}}}', as_of => {NINE_YEARS})",
    # settlements that were never due, and leases without an end
    "select postbus.extend(array[gen_random_uuid()], '1 hour', as_of => 'infinity')",
    "select postbus.retry(gen_random_uuid(), array[1], as_of => '-infinity')",
    "select postbus.dead_letter(gen_random_uuid(), array[1], 'no', as_of => '-infinity')",
    "select postbus.settle_deferred(1, 0, gen_random_uuid(), '{{}}', 'done', as_of => '-infinity')",
    "select postbus.extend_deferred(array[gen_random_uuid()], array[1], as_of => 'infinity')",
    "select postbus.inbox_once('honest', 'm', as_of => '2041-01-01')",
    "select postbus.inbox_once_many('honest', array['m'], as_of => '2041-01-01')",
    # an expired token works
    "select * from postbus.check_token('old', 'hash', as_of => '2001-01-01')",
    "select * from postbus.check_token('old', 'hash', '2001-01-01')",
    # admins move and remove what is old, and not what they say is old
    f"select * from postbus.force_complete('log', '1 hour', as_of => {NINE_YEARS})",
    f"select * from postbus.remove_group('log', 'audit', as_of => {NINE_YEARS})",
    f"select postbus.publish_partitions({{storage}}, as_of => {NINE_YEARS})",
    # and figures are those of now
    f"select * from postbus.sweep_health(as_of => {NINE_YEARS})",
    f"select * from postbus.groups_near_timeout(as_of => {NINE_YEARS})",
    f"select * from postbus.stuck_messages(as_of => {NINE_YEARS})",
    f"select * from postbus.recent_calls(1, as_of => {NINE_YEARS})",
    "select postbus.alive_since('infinity')",
]


@pytest.mark.parametrize("call", CALLS)
def test_no_role_can_give_the_time(stage: Stage, call: str) -> None:
    """No role has such a function, and nothing has changed afterwards."""
    sql = call.format(storage=stage.storage, groups=f"array{stage.groups}::bigint[]", nothing=_NOTHING)
    told = {role: stage.attack(role, sql) for role in ROLES}
    assert stage.facts() == stage.before
    for role, refused in told.items():
        assert isinstance(refused, asyncpg.UndefinedFunctionError), f"{role}: {refused!r}"


@pytest.mark.parametrize("role", ROLES)
def test_no_function_of_a_role_takes_the_time(stage: Stage, role: str) -> None:
    """The catalogue is queried, whatever the function's name."""
    found = stage.fetch(
        stage.owner,
        """select f.oid::regprocedure::text from pg_proc f
            where f.pronamespace = 'postbus'::regnamespace and has_function_privilege($1, f.oid, 'execute')
              and (f.proname ~ 'as_of' or 'as_of' = any (f.proargnames))""",
        stage.role(role),
    )
    assert found == []


def _inner(stage: Stage) -> list[str]:
    return [
        row[0]
        for row in stage.fetch(
            stage.owner,
            "select format('postbus.%s(%s)', f.proname, (select string_agg('null::' || format_type(t, null), ', ' "
            "order by n) from unnest(f.proargtypes) with ordinality as a (t, n))) from pg_proc f "
            "where f.pronamespace = 'postbus'::regnamespace and 'as_of' = any (f.proargnames)",
        )
    ]


@pytest.mark.parametrize("role", ROLES)
def test_functions_that_take_the_time_are_closed(stage: Stage, role: str) -> None:
    """Each internal function with such a parameter is refused to each role, whatever its arguments."""
    inner = _inner(stage)
    assert len(inner) > 40
    for call in inner:
        refused = stage.attack(role, f"select {call}")
        assert isinstance(refused, asyncpg.InsufficientPrivilegeError), f"{call}: {refused!r}"
    assert stage.facts() == stage.before


def test_open_transaction_does_not_stop_the_clock(stage: Stage) -> None:
    """A message that comes due in it is due, and a token that expires in it has expired."""
    stage.value(
        stage.owner, "select postbus.create_token('soon', 'hash', 'soon', array['consumer'], expires_in => '20 ms')"
    )
    conn = stage.users["consumer"]
    stage.run(conn.execute("begin"))
    assert len(stage.fetch(conn, "select * from postbus.check_token('soon', 'hash')")) == 1
    stage.run(asyncio.sleep(0.03))
    assert stage.fetch(conn, "select * from postbus.check_token('soon', 'hash')") == []
    stage.run(conn.execute("rollback"))


LENGTHS = ["-1 second", "-290000 years", "0", "290000 years", "1001 years", "infinity", "-infinity"]
MOMENTS = ["4713-01-01 BC", "294276-12-31", "infinity", "-infinity"]
_CLAIMED = "from postbus.claim('scratch', 'm', 1) as c"
_POPPED = "from postbus.pop('scratch.log', 'scratch') as c where c.token is not null"
_OF_LENGTH = {
    "publish": "select postbus.publish('scratch', 'x'::text, delay => {})",
    "publish_many": "select postbus.publish_many('scratch', array['x'::bytea], delays => array[{}]::interval[])",
    "claim": "select * from postbus.claim('scratch', 'm', 1, lease => {})",
    "claim_suspects": "select * from postbus.claim_suspects('scratch', 'm', lease => {})",
    "pop": "select * from postbus.pop('scratch', lease => {})",
    "pop of a group": "select * from postbus.pop('scratch.log', 'scratch', lease => {})",
    "pop_scope": "select * from postbus.pop_scope('scoped', pattern => 'scratch.#', lease => {})",
    "extend": f"select postbus.extend(array[c.token], {{}}) {_CLAIMED}",
    "extend of a group": f"select postbus.extend(array[c.token], {{}}) {_POPPED}",
    "retry": f"select postbus.retry(c.token, c.ids, {{}}) {_CLAIMED}",
    "retry of a group": f"select postbus.retry(c.token, c.ids, {{}}) {_POPPED}",
    "inbox_once": "select postbus.inbox_once('m', {}, keep => {})",
    "look_back":
        "select postbus.subscribe_scope('g' || md5({}), pattern => 'scratch.#', mode => 'new', look_back => {})",
    "stuck_messages": "select * from postbus.stuck_messages({})",
}  # fmt: skip
_OF_MOMENT = {
    "deliver_at": "select postbus.publish('scratch', 'x'::text, deliver_at => {})",
    "deliver_ats": "select postbus.publish_many('scratch', array['x'::bytea], deliver_ats => array[{}]::timestamptz[])",
    "start_at": "select postbus.subscribe('scratch.log', 'at' || md5({}), 'FROM_TIMESTAMP', {})",
    "start_at of a scope":
        "select postbus.subscribe_scope('at' || md5({}), pattern => 'scratch.#', mode => 'timestamp', start_at => {})",
    "since": "select postbus.return_expired(since => {})",
}  # fmt: skip
_EXTREMES = [(f"{name} {value}", sql, value) for name, sql in _OF_LENGTH.items() for value in LENGTHS]
_EXTREMES += [(f"{name} {value}", sql, value) for name, sql in _OF_MOMENT.items() for value in MOMENTS]


@pytest.mark.parametrize(("sql", "value"), [pytest.param(sql, value, id=name) for name, sql, value in _EXTREMES])
def test_extreme_durations_and_times_harm_nobody(stage: Stage, sql: str, value: str) -> None:
    """They are refused or harmless: sweeping and every view works afterwards, and others' messages are untouched."""
    role = "producer" if ".publish" in sql else "observer" if ".stuck" in sql else "consumer"
    refused = stage.attack(role, sql.replace("{}", f"'{value}'"))
    if refused is not None:
        assert refused.sqlstate in _REFUSALS, repr(refused)
    stage.maintain()
    stage.look()
    assert stage.facts() == stage.before


_REFUSALS = {"PB402", "22007", "22008"}
"""Refused by Postbus; as no time; or as one that does not exist."""
_COUNTS = [
    "select * from postbus.sweep(max_count => $1)",
    "select postbus.return_expired(max_count => $1)",
    "select * from postbus.claim_suspects('scratch', 'm', max_count => $1)",
    "select * from postbus.pop('scratch', max_count => $1)",
]


_DELAYS = [value for value in LENGTHS if value != "0"]


@pytest.mark.parametrize("value", _DELAYS)
def test_extreme_retry_delays_are_refused(stage: Stage, value: str) -> None:
    """A message that is never due would block its key forever, so even the lane's holder is refused."""
    [lane] = stage.run(take(stage.owner, "w", stage.scratch))
    settle = (
        "select postbus.settle_deferred(subscription_id => $1, lane => 0, token => $2, ids => '{}', "
        f"outcome => 'retry', delay => '{value}')"
    )
    refused = stage.attack("consumer", settle, stage.scratch, lane.token)
    assert refused is not None
    assert refused.sqlstate in _REFUSALS
    stage.value(stage.owner, "select postbus.leave_groups('w', array[$1::bigint])", stage.scratch)
    stage.value(stage.owner, "select postbus.sign_off('w')")


@pytest.mark.parametrize("count", [-1, 0, -(1 << 31), (1 << 31) - 1])
@pytest.mark.parametrize("sql", _COUNTS)
def test_extreme_counts_take_nothing_from_others(stage: Stage, sql: str, count: int) -> None:
    """Sweeping, claiming and popping with such counts leave the facts as they were."""
    stage.attack("consumer", sql, count)
    stage.maintain()
    stage.look()
    assert stage.facts() == stage.before
