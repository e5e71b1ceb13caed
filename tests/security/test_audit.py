"""Attacks on the audit log: changing it, forging the actor, acting without an entry, learning secrets from it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from postbus import Bus
from postbus._db.migrator import migrate
from postbus.embedded import EmbeddedPostgres
from postbus.errors import InvalidOption
from support.audited import ACTS, NO_ACTIONS, make_world, role_of

pytestmark = pytest.mark.attack("the audit log")

ROLES = ("producer", "consumer", "observer", "operator", "admin")


@dataclass(frozen=True)
class World:
    """A database with a login for each role, shared by all attacks."""

    dsn: str
    logins: dict[str, str]


@pytest.fixture(scope="module")
def world(server: EmbeddedPostgres) -> Iterator[World]:
    name = f"audit_{secrets.token_hex(6)}"
    logins = {role: f"{role}_{secrets.token_hex(4)}" for role in (*ROLES, "stranger")}

    async def make() -> None:
        root: Any = await asyncpg.connect(server.dsn())
        await root.execute(f"create database {name}")
        await root.close()
        owner: Any = await asyncpg.connect(server.dsn(name))
        await migrate(owner)
        await make_world(owner)
        for role, login in logins.items():
            await owner.execute(f"create role {login} login")
            if role != "stranger":
                await owner.execute(f'grant "{await role_of(owner, role)}" to {login}')
        await owner.close()

    async def remove() -> None:
        root: Any = await asyncpg.connect(server.dsn())
        await root.execute(f"drop database {name} with (force)")
        for row in await root.fetch("select rolname from pg_roles where rolname like 'postbus_%_' || $1", name):
            await root.execute(f'drop role "{row["rolname"]}"')
        for login in logins.values():
            await root.execute(f"drop role {login}")
        await root.close()

    asyncio.run(make())
    yield World(server.dsn(name), logins)
    asyncio.run(remove())


@asynccontextmanager
async def acting(world: World, role: str | None) -> AsyncIterator[Any]:
    """Open a login with this role, in a transaction that is rolled back; the owner's without a role."""
    conn: Any = await asyncpg.connect(world.dsn, user=None if role is None else world.logins[role])
    await conn.execute("begin")
    try:
        yield conn
    finally:
        await conn.close()


async def last_entry(conn: Any) -> Any:
    return await conn.fetchrow("select * from postbus.audit order by id desc limit 1")


_TAMPER = [
    "insert into postbus.audit_entry (login, action) values ('somebody', 'topic.delete')",
    "update postbus.audit_entry set login = 'somebody'",
    "delete from postbus.audit_entry",
    "truncate postbus.audit_entry",
    "select * from postbus.audit_entry",
    "lock table postbus.audit_entry",
    "drop table postbus.audit_entry",
    "alter table postbus.audit_entry disable trigger all",
    "alter table postbus.audit_entry enable row level security",
    "create trigger t before insert on postbus.audit_entry execute function suppress_redundant_updates_trigger()",
    "create rule r as on insert to postbus.audit_entry do instead nothing",
    "select nextval('postbus.audit_entry_id_seq')",
    "update postbus.audit set login = 'somebody'",
    "delete from postbus.audit",
    "insert into postbus.audit (login, action) values ('somebody', 'topic.delete')",
    "create or replace view postbus.audit as select 1 as id",
    "update postbus.sweep_setting set audit_retention = '0'",
    "select postbus.note_action('topic.delete', 'q')",
    "select postbus.note_change('topic.set', '{}', '{\"a\": 1}')",
    "select postbus.sweep_audit(1000)",
    "select postbus.change_group_state('log', 'g', 'PAUSED')",
    "set session authorization postgres",
    "set local session_replication_role = 'replica'",
]


@pytest.mark.parametrize("statement", _TAMPER)
@pytest.mark.parametrize("role", [*ROLES, "stranger"])
async def test_no_role_can_change_the_audit_log(world: World, role: str, statement: str) -> None:
    """Only actions write entries, and only the owner can change or remove one."""
    async with acting(world, role) as conn:
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)):
            await conn.execute(statement)


@pytest.mark.parametrize("function", [
    "one_line(text)", "short_json(jsonb)", "differing(jsonb, jsonb)", "is_manager()", "url_origin(text)",
])  # fmt: skip
async def test_internal_functions_of_the_audit_log_are_closed(world: World, function: str) -> None:
    """No role may execute them."""
    async with acting(world, None) as conn:
        for role in ROLES:
            may = "select has_function_privilege($1, 'postbus.' || $2, 'execute')"
            assert not await conn.fetchval(may, world.logins[role], function)


async def test_every_administrative_function_writes_an_entry(world: World) -> None:
    """Each function that admins may call is audited, or is listed as an exception."""
    noted = {act.function for act in ACTS}
    excepted = set().union(*NO_ACTIONS.values())
    async with acting(world, None) as conn:
        granted = await conn.fetch("""
            select distinct f.proname from pg_proc f
              join pg_roles r on r.rolname ~ '^postbus_(admin|operator)'
             where f.pronamespace in ('postbus'::regnamespace, 'postbus_outbox'::regnamespace)
               and has_function_privilege(r.oid, f.oid, 'execute')""")
    names = {row["proname"] for row in granted}
    assert names > {"seek", "purge_topic"}
    assert names - noted - excepted == set()
    assert noted & excepted == set()


@pytest.mark.parametrize("act", ACTS, ids=lambda act: f"{act.action}-{act.function}")
async def test_every_admin_action_is_recorded_with_the_login(world: World, act: Any) -> None:
    """The admin's own login is recorded, whatever names the session sets."""
    async with acting(world, "admin") as conn:
        before = (await last_entry(conn))["id"]
        await conn.execute("set local postbus.actor = 'somebody else'; set local application_name = 'innocent'")
        await conn.fetch(act.sql)
        entries = await conn.fetch("select * from postbus.audit where id > $1", before)
    assert [one["action"] for one in entries] == [act.action]
    assert {one["login"] for one in entries} == {world.logins["admin"]}


@pytest.mark.parametrize("claim", [
    "set local postbus.actor = 'postgres'",
    "set local role admin",
    "set local application_name = 'postbus migrate'",
    "set local search_path = pg_temp",
    "set local postbus.actor = ''",
])  # fmt: skip
async def test_lie_about_the_actor_does_not_hide_the_login(world: World, claim: str) -> None:
    """The caller's own words stand beside the login."""
    async with acting(world, "admin") as conn:
        await conn.execute(claim.replace("role admin", f'role "{await role_of(conn, "admin")}"'))
        await conn.execute("select postbus.pause_topic('q')")
        assert (await last_entry(conn))["login"] == world.logins["admin"]


@pytest.mark.parametrize("planted", [
    "create temp table audit_entry (id bigint, login text, action text)",
    "create function pg_temp.note_action(text, text) returns void language sql as 'select'",
    "create function pg_temp.one_line(text) returns text language sql as $$ select 'fooled' $$",
    "create temp table sweep_setting (audit_retention interval)",
])  # fmt: skip
async def test_planted_objects_take_no_entries(world: World, planted: str) -> None:
    """An object in an admin's own schema never replaces ours."""
    async with acting(world, "admin") as conn:
        before = (await last_entry(conn))["id"]
        await conn.execute(planted)
        await conn.execute("set local search_path = pg_temp, postbus, pg_catalog")
        await conn.execute("select postbus.pause_topic('q')")
        entry = await last_entry(conn)
    assert entry["id"] > before
    assert (entry["topic"], entry["login"]) == ("q", world.logins["admin"])


DANGEROUS = {
    "line break": "alice\n2030-01-01 bob topic.delete",
    "carriage return": "alice\rbob",
    "escape": "\x1b[2Jalice",
    "bell and backspace": "a\x07\x08",
    "delete": "a\x7f",
    "C1 control": "a\x9b31m",
    "right to left": "a\u202etxt.exe",
    "isolate": "a\u2066b\u2069",
    "line separator": "a\u2028b",
    "zero width": "ad\u200bmin",
    "byte order mark": "\ufeffadmin",
    "arabic mark": "a\u061cb",
    "tag": "a\U000e0041",
    "too long": "x" * 1_000_000,
    "too wide": "\u4e2d" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("kind", DANGEROUS)
@pytest.mark.parametrize("setting", ["postbus.actor", "application_name"])
async def test_actor_and_program_are_stored_on_one_short_line(world: World, kind: str, setting: str) -> None:
    """No character ends the line, moves the cursor or turns the text around."""
    async with acting(world, "admin") as conn:
        await conn.execute("select set_config($1, $2, true)", setting, DANGEROUS[kind])
        await conn.execute("select postbus.pause_topic('q')")
        entry = await last_entry(conn)
    told = entry["actor" if setting == "postbus.actor" else "program"]
    assert told.isprintable()
    assert 0 < len(told) <= 200


@pytest.mark.parametrize("kind", DANGEROUS)
async def test_names_in_an_entry_are_stored_on_one_short_line(world: World, kind: str) -> None:
    """This includes names that are not checked otherwise, such as the topics of limits."""
    async with acting(world, "admin") as conn:
        await conn.execute("select postbus.set_health_limits('{\"lag\": 7}', $1, $1)", DANGEROUS[kind][:2000])
        entry = await last_entry(conn)
    assert entry["topic"].isprintable()
    assert entry["group_name"].isprintable()
    assert max(len(entry["topic"]), len(entry["group_name"])) <= 200


async def test_entry_has_a_bounded_size(world: World) -> None:
    """A filter or a list of millions of bytes does not fill the log."""
    async with acting(world, "admin") as conn:
        await conn.execute("select postbus.redrive('q', reason_like => '%' || repeat('%', 5000000))")
        await conn.execute(
            "select postbus.create_token('long', 'h', 'n', array['admin'], array_fill('t'::text, array[100000]))"
        )
        sizes = await conn.fetch("select octet_length(e::text) as size from postbus.audit e order by id desc limit 2")
    assert max(row["size"] for row in sizes) < 20_000


@pytest.mark.parametrize("actor", ["", "a\nb", "\x1b[2J", "a\u202eb", "a\0b", "x" * 201, "\ud800", 7])
async def test_bad_actor_is_refused(world: World, actor: Any) -> None:
    """Programs get the error at once."""
    with pytest.raises(InvalidOption):
        Bus.open(world.dsn, actor=actor)
    bus = Bus.open(world.dsn)
    with pytest.raises(InvalidOption):
        bus.admin.acting_as(actor)


@pytest.mark.parametrize("savepoint", [True, False])
async def test_effect_cannot_be_kept_without_its_entry(world: World, savepoint: bool) -> None:
    """Undoing the entry undoes the action, which is in the same subtransaction."""
    async with acting(world, "admin") as conn:
        before = (await last_entry(conn))["id"]
        await conn.execute("savepoint here" if savepoint else "select 1")
        await conn.execute("select postbus.pause_topic('q')")
        await conn.execute("rollback to savepoint here" if savepoint else "rollback; begin")
        assert (await last_entry(conn))["id"] == before
        assert await conn.fetchval("select paused_at is null from postbus.topics where name = 'q'")


@pytest.mark.parametrize("keeps", ["0", "1 second", "29 days", "-90 days", "29 days 23:59:59", "2000 years", None])
async def test_audit_retention_cannot_be_cut_to_wipe_traces(world: World, keeps: str | None) -> None:
    """Thirty days remain, whoever sets it."""
    async with acting(world, "admin") as conn:
        with pytest.raises(asyncpg.PostgresError, match="sweeping"):
            await conn.execute("select postbus.set_sweeping($1)", json.dumps({"audit_retention": keeps}))


@pytest.mark.parametrize("role", ["consumer", "admin"])
async def test_sweeping_removes_no_young_entries(world: World, role: str) -> None:
    """Neither the shortest retention nor a batch of any size does."""
    async with acting(world, None) as owner:
        known = await owner.fetchval("select count(*) from postbus.audit_entry")
    async with acting(world, role) as conn:
        if role == "admin":
            await conn.execute('select postbus.set_sweeping(\'{"audit_retention": "30 days"}\')')
            known += 1
        await conn.execute("select postbus.sweep(1000000)")
        await conn.execute("savepoint s")
        with pytest.raises(asyncpg.PostgresError):
            await conn.execute("select postbus.sweep_as_of(1000000, now() + interval '9 years', false)")
        await conn.execute("rollback to savepoint s")
        if role == "admin":
            assert await conn.fetchval("select count(*) from postbus.audit") == known


@pytest.mark.parametrize("statement", [
    "select postbus.subscribe('log', 'flood')",
    "select postbus.subscribe('log', 'g', on_failure => 'pass')",
    "select postbus.subscribe_scope('flood', pattern => 'log.#')",
    "select postbus.ensure_topic('flood')",
    "select postbus.inbox_forget('c', 'm')",
    "select postbus.pop('log', 'g', 'm')",
    "select postbus.group_heartbeat(array[1, 2, 3, 4], '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
])  # fmt: skip
async def test_consumers_do_not_fill_the_audit_log(world: World, statement: str) -> None:
    """Everyday work is not an administrative action."""
    async with acting(world, None) as conn:
        known = await conn.fetchval("select count(*) from postbus.audit_entry")
        await conn.execute(f"set session authorization {world.logins['consumer']}")
        await conn.fetch(statement)
        await conn.execute("reset session authorization")
        assert await conn.fetchval("select count(*) from postbus.audit_entry") == known


_SECRETS = ("hash-of-it", "path-secret", "a-secret-of", "another-secret", "payload-of-it")


@pytest.mark.parametrize("act", [one for one in ACTS if one.action.partition(".")[0] in
                                 ("token", "webhook", "dead_letters", "topic", "import")],
                         ids=lambda act: f"{act.action}-{act.function}")  # fmt: skip
async def test_audit_log_holds_no_secret(world: World, act: Any) -> None:
    """It has no hashes of tokens, no secrets or paths of webhooks, and no payloads."""
    async with acting(world, "admin") as conn:
        await conn.fetch(act.sql)
        text = await conn.fetchval("select string_agg(e::text, ' ') from postbus.audit e")
    assert not [one for one in _SECRETS if one in text]


_LEAK = """
    create function pg_temp.leak(text) returns boolean language plpgsql cost 0.0000001 as
    $$ begin raise notice '%', $1; return true; end $$
"""


@pytest.mark.parametrize("query", [
    "select * from postbus.audit where action like 'token.%' or action like 'webhook.%' or action like 'role.%'",
    "select * from postbus.audit where target in ('tok', 'hook')",
    "select * from postbus.audit where address is not null",
    "select * from postbus.audit where pg_temp.leak(target) and target in ('tok', 'hook')",
    "select 1 from postbus.audit where 1 / (case when target = 'tok' then 0 else 1 end) = 2",
])  # fmt: skip
async def test_observers_see_no_entries_of_tokens_webhooks_and_addresses(world: World, query: str) -> None:
    """A function of their own, called before the view's condition, sees none either."""
    noticed: list[str] = []
    async with acting(world, "observer") as conn:
        conn.add_log_listener(lambda _, message: noticed.append(str(message.message)))
        if "leak" in query:
            await conn.execute(_LEAK)
        assert await conn.fetch(query) == []
        assert await conn.fetchval("select count(*) from postbus.audit where topic = 'log'") > 0
    assert not {"tok", "hook"}.intersection(noticed)


@pytest.mark.parametrize("role", ["producer", "consumer", "stranger"])
async def test_other_roles_cannot_read_the_audit_log(world: World, role: str) -> None:
    """Producers, consumers and strangers are refused."""
    async with acting(world, role) as conn:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await conn.fetch("select * from postbus.audit")


async def test_actor_does_not_stay_on_a_connection(world: World) -> None:
    """A later action over the same connection is not recorded under the earlier actor."""
    async with Bus.open(world.dsn, pool_size=1) as bus:
        await bus.admin.acting_as("alice").set_topic("done", max_attempts=7)
        await bus.admin.set_topic("done", max_attempts=8)
        await bus.admin.acting_as("bob").set_topic("done", max_attempts=9)
        async with bus.transaction() as conn:
            await conn.execute("select postbus.set_topic('done', '{\"max_attempts\": 10}')")
        entries = await bus.admin.audit(topic="done", action="topic.set", newest=False)
    assert [one.actor for one in entries] == ["alice", None, "bob", None]
