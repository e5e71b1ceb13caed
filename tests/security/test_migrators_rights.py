"""No foreign code runs with the rights of those who migrate, examine and use a database."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from postbus import Bus, Message, PostbusError, SchemaNotTrusted, Start
from postbus._db.connect import _PREPARE_SESSION, connect
from postbus._db.migrator import check, code_checksum, migrate, migrate_reporting, read_state, script
from postbus.cli._doctor.examine import examine
from postbus.cli._doctor.finding import Level, Target
from postbus.embedded import EmbeddedPostgres
from postbus.inbox import Inbox
from security.lookalikes import plant

pytestmark = pytest.mark.attack("the rights of those who migrate")


class Town:
    """A server with its own database and two users: its owner, and eve, who may create much."""

    def __init__(self, server: EmbeddedPostgres, *, owned_by_eve: bool = False) -> None:
        self.name = f"town_{secrets.token_hex(6)}"
        self.eve, self.owner = f"eve_{self.name}", f"owner_{self.name}"
        self._server = server
        self.dsn = server.dsn(self.name)
        with self.root(server.dsn()) as root:
            root.execute(f"create role {self.eve} login; create role {self.owner} login")
            owner = self.eve if owned_by_eve else self.owner
            root.execute(f"create database {self.name} template template0 owner {owner}")
        with self.root() as root:
            root.execute(
                f"grant create on database {self.name} to {self.eve}; grant create on schema public to {self.eve}"
            )

    def dsn_of(self, user: str) -> str:
        return urlsplit(self.dsn)._replace(netloc=f"{user}@").geturl()

    @contextlib.contextmanager
    def root(self, dsn: str | None = None) -> Iterator[Any]:
        with psycopg.connect(dsn or self.dsn, autocommit=True) as conn:
            yield conn

    @contextlib.contextmanager
    def as_eve(self) -> Iterator[Any]:
        with psycopg.connect(self.dsn_of(self.eve), autocommit=True) as conn:
            yield conn

    def raze(self) -> None:
        with self.root(self._server.dsn()) as root:
            root.execute(f"drop database {self.name} with (force)")
            for (role,) in root.execute(
                "select rolname from pg_roles where rolname like %s", [f"%\\_{self.name}"]
            ).fetchall():
                root.execute(f'drop role "{role}"')


@pytest.fixture(scope="module")
def planted(server: EmbeddedPostgres) -> Iterator[Town]:
    """Give eve a database with look-alikes of everything that Postbus calls, found first."""
    town = Town(server, owned_by_eve=True)
    with town.as_eve() as eve:
        assert plant(eve) > 500
        eve.execute(f"alter database {town.name} set search_path = public, pg_catalog")
    yield town
    town.raze()


async def _migrated(town: Town) -> Any:
    conn = await connect(town.dsn)
    await migrate(conn)
    return conn


# Administration


async def test_lookalikes_fool_unpinned_statements(planted: Town) -> None:
    """The attack works: a statement on a plain connection calls them."""
    conn: Any = await asyncpg.connect(planted.dsn)
    try:
        with pytest.raises(asyncpg.RaiseError, match="fooled"):
            await conn.fetchval("select format('%s', 'a'::pg_catalog.text)")
    finally:
        await conn.close()


async def test_migration_calls_no_lookalikes(planted: Town) -> None:
    """This holds for a superuser's first migration, on any plain connection, and for the second one."""
    conn: Any = await asyncpg.connect(planted.dsn)
    try:
        await migrate_reporting(conn)
        assert await migrate(conn) == []
        await check(conn)
    finally:
        await conn.close()


async def test_printed_script_calls_no_lookalikes(planted: Town, client_program: Callable[[str], str]) -> None:
    """psql runs the script with the search path of the database."""
    with planted.root() as root:
        root.execute("drop schema if exists postbus, postbus_outbox cascade")
    done = subprocess.run(
        [client_program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", planted.dsn],
        input=script(), text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


async def test_doctor_calls_no_lookalikes(planted: Town) -> None:
    """No check of the doctor fails, on its own connection or on one that is not pinned."""
    await (await _migrated(planted)).close()
    for opened in (connect(planted.dsn), asyncpg.connect(planted.dsn)):
        conn: Any = await opened
        try:
            found = await examine(Target(planted.dsn, conn))
        finally:
            conn.terminate()
        assert not [one for one in found if one.level is Level.ERROR or "fooled" in one.text]


async def _topics(bus: Bus) -> None:
    await bus.admin.create_topic("log", semantics="PUB_SUB")
    await bus.admin.set_topic("log", retention="2 days")
    await bus.admin.topics()
    await bus.admin.delete_topic("log", force=True)


async def _groups(bus: Bus) -> None:
    await bus.admin.create_topic("log", semantics="PUB_SUB")
    await (await bus.connect()).subscribe("log", "audit", Start.BEGINNING, "block")
    await bus.send("log", {"n": 1})
    await bus.admin.groups("log")
    await bus.admin.pause_group("log", "audit")
    await bus.admin.resume_group("log", "audit")
    await bus.admin.seek("log", "audit", Start.BEGINNING)
    pulled = await bus.pop("log", group="audit")
    await pulled[0].ack()
    await bus.admin.group_findings()
    await bus.admin.delete_topic("log", force=True)


async def _queue(bus: Bus) -> None:
    await bus.send("jobs", {"n": 1}, key="k", headers={"a": "b"})
    await bus.send("jobs", "text")
    pulled = await bus.pop("jobs", batch=2)
    await pulled[0].retry(delay=0.0)
    await pulled[1].dead_letter("no")
    await bus.admin.dead_letters("jobs")
    await bus.admin.redrive("jobs")
    await bus.admin.messages("jobs")
    await bus.admin.purge_topic("jobs")


async def _sweep(bus: Bus) -> None:
    await bus.admin.sweeping()
    await bus.admin.sweep_health()
    await bus.admin.rebase()


async def _http_admin(bus: Bus) -> None:
    token = await bus.admin.create_token("t", ["admin"])
    await bus.admin.tokens()
    await bus.admin.revoke_token(token.id)
    await bus.admin.create_webhook("w", "jobs", "https://example.com")
    await bus.admin.webhooks()
    await bus.admin.delete_webhook("w")


async def _transaction(bus: Bus) -> None:
    inbox = Inbox()
    async with bus.transaction() as conn:
        assert await conn.fetchval("select pg_catalog.current_setting('search_path')") == "public, pg_catalog"
        await bus.publish(conn, "jobs", {"n": 1})
        await bus.publish_many(conn, "jobs", [{"n": 2}, {"n": 3}])
        await bus.publish_many(conn, "jobs", [b"a", "b"])
        async with inbox.once(conn, "c", secrets.token_hex(4)) as first:
            assert first
    await bus.admin.purge_topic("jobs")


async def _worker(bus: Bus) -> None:
    done = []

    @bus.subscribe("tasks")
    async def handle(message: Message) -> None:
        done.append(message.id)
        bus.stop()

    await bus.send("tasks", {"n": 1})
    await bus.run()
    assert done


_USES: dict[str, Callable[[Bus], Awaitable[None]]] = {
    "topics": _topics,
    "groups": _groups,
    "a queue": _queue,
    "sweeping and rebasing": _sweep,
    "tokens and webhooks": _http_admin,
    "a user's transaction": _transaction,
    "a worker": _worker,
}


_UNPINNED = """
    with recursive unpinned as (
        select f.oid, f.oid::regprocedure::text as signature, f.proacl
          from pg_proc f join pg_language l on l.oid = f.prolang
          join pg_namespace n on n.oid = f.pronamespace and n.nspname in ('postbus', 'postbus_outbox', 'postbus_topics')
         where l.lanname in ('sql', 'plpgsql') and f.prosqlbody is null
           and not coalesce(f.proconfig::text ~ 'search_path=', false)
    ), reached as (
        select f.oid from pg_proc f cross join aclexplode(f.proacl) as given where given.grantee <> f.proowner
        union
        select d.refobjid from pg_depend d join pg_rewrite r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid
         where d.refclassid = 'pg_proc'::regclass
        union
        select d.refobjid from reached join pg_depend d on d.classid = 'pg_proc'::regclass and d.objid = reached.oid
         where d.refclassid = 'pg_proc'::regclass
    )
    select signature from unpinned where oid in (select oid from reached)
"""


async def test_functions_that_sessions_reach_are_pinned(conn: Any) -> None:
    """A function that roles call, directly or by a view, means the same with every search path."""
    assert [row["signature"] for row in await conn.fetch(_UNPINNED)] == []


@pytest.mark.parametrize("use", _USES)
async def test_bus_calls_no_lookalikes(planted: Town, use: str) -> None:
    """A superuser would lose most: this covers administration, consuming, and publishing in the user's transaction."""
    await (await _migrated(planted)).close()
    async with Bus.open(planted.dsn) as bus:
        await _USES[use](bus)


async def test_psycopg_publishes_without_lookalikes(planted: Town) -> None:
    """The user's connection of another driver has a search path that finds the look-alikes first."""
    await (await _migrated(planted)).close()
    bus = Bus(planted.dsn)
    with psycopg.connect(planted.dsn) as conn:
        assert bus.publish(conn, "jobs", {"n": 1}, headers={"a": "b"})
        assert bus.publish_many(conn, "jobs", [b"1", b"2"])
    bus.close_sync()


async def test_bus_behind_a_pooler_calls_no_lookalikes(planted: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no session state is ours, each statement is qualified, or has a transaction of its own."""
    await (await _migrated(planted)).close()
    # The server's process id differs from the one the driver was told: so it is behind a pooler.
    behind_a_pooler = _PREPARE_SESSION.replace("pg_catalog.pg_backend_pid()", "0")
    monkeypatch.setattr("postbus._db.connect._PREPARE_SESSION", behind_a_pooler)
    async with Bus.open(planted.dsn) as bus:
        assert (await bus.connect()).is_pooled
        for use in _USES.values():
            await use(bus)
    conn = await connect(planted.dsn)
    found = await examine(Target(planted.dsn, conn))
    await conn.close()
    assert not [one for one in found if one.level is Level.ERROR or "fooled" in one.text]


# Objects made beforehand

_OF_EVE = {
    "schema": ("create schema postbus", "schema postbus"),
    "schema of the views": ("create schema postbus_outbox", "schema postbus_outbox"),
    "schema with functions": (
        "create schema postbus; create function postbus.schema_state(out migrations int, out breaking int, "
        "out code_version text, out code_checksum text) language plpgsql as $$ begin raise exception 'fooled'; end $$",
        "schema postbus",
    ),
}
_IN_A_TRUSTED_SCHEMA = {
    "function": ("create function postbus.refuse(text, text, text) returns void language plpgsql as "
                 "$$ begin raise exception 'fooled'; end $$", "function postbus.refuse("),
    "overloaded function": ("create function postbus.refuse(text, text, name) returns void language plpgsql as "
                            "$$ begin raise exception 'fooled'; end $$", "function postbus.refuse("),
    "procedure": ("create procedure postbus.sweep_all() language sql as 'select 1'", "procedure postbus.sweep_all()"),
    "aggregate": ("create aggregate postbus.max_of(int) (sfunc = int4larger, stype = int)",
                  "aggregate postbus.max_of(integer)"),
    "table": ("create table postbus.migration (number int)", "table postbus.migration"),
    "view": ("create view postbus.topic as select 1 as id", "view postbus.topic"),
    "sequence": ("create sequence postbus.message_id", "sequence postbus.message_id"),
    "type": ("create type postbus.queue_message as (id bigint)", "type postbus.queue_message"),
    "domain": ("create domain postbus.small as int", "type postbus.small"),
    "enum": ("create type postbus.state as enum ('a')", "type postbus.state"),
    "operator": ("create operator postbus.= (leftarg = text, rightarg = int, function = starts_with_int)", "operator"),
    "foreign function of another name": ("create function postbus.mine() returns int language sql as 'select 1'",
                                         "function postbus.mine()"),
}  # fmt: skip
_BEFORE = {**_OF_EVE, **_IN_A_TRUSTED_SCHEMA}


@pytest.fixture(scope="module")
def village(server: EmbeddedPostgres) -> Iterator[Town]:
    """Create a database without Postbus."""
    town = Town(server)
    yield town
    town.raze()


@pytest.mark.parametrize("made", _BEFORE)
@pytest.mark.parametrize("migrator", ["superuser", "owner"])
async def test_objects_made_beforehand_are_refused_by_name(village: Town, made: str, migrator: str) -> None:
    """None of them is called. The error names the object and its owner, and the remedy removes it."""
    statement, name = _BEFORE[made]
    user = village.owner if migrator == "owner" else "postgres"
    with village.root() as root, village.as_eve() as eve:
        if made in _IN_A_TRUSTED_SCHEMA:
            root.execute(
                f"create schema postbus authorization {user}; grant usage, create on schema postbus to {village.eve}"
            )
        if made == "operator":
            eve.execute("create function public.starts_with_int(text, int) returns bool language sql as 'select true'")
            statement = statement.replace("starts_with_int", "public.starts_with_int")
        eve.execute(statement)
    conn: Any = await asyncpg.connect(village.dsn_of(user))
    try:
        with pytest.raises(SchemaNotTrusted) as refused:
            await migrate(conn)
        assert name in refused.value.message
        assert village.eve in refused.value.message
        with village.root() as root:
            assert root.execute("select to_regclass('postbus.installed')").fetchone() == (None,)
    finally:
        await conn.close()
        with village.root() as root:
            removal = refused.value.remedy.rpartition("remove it: ")[2]
            root.execute(removal)
            root.execute(
                "drop schema if exists postbus, postbus_outbox cascade; drop function if exists public.starts_with_int"
            )


async def test_printed_script_refuses_objects_made_beforehand(
    village: Town, client_program: Callable[[str], str]
) -> None:
    """The script checks by itself, and changes nothing."""
    with village.as_eve() as eve:
        eve.execute(_OF_EVE["schema with functions"][0])
    try:
        done = subprocess.run(
            [client_program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", village.dsn],
            input=script(), text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert f"schema postbus belongs to {village.eve}" in done.stderr
        assert "fooled" not in done.stderr
    finally:
        with village.root() as root:
            root.execute("drop schema postbus cascade")


# Objects added afterwards

_FUNCTION = (
    "create or replace function public.trap() returns {} language plpgsql as $$ begin raise exception 'fooled'; end $$"
)
# The function's return type, a superuser's statement that uses the function, and the one that takes it back.
_AFTERWARDS = {
    "trigger": (
        "trigger",
        "create trigger trap before insert on postbus.queued for each row execute function public.trap()",
        "drop trigger trap on postbus.queued",
    ),
    "default": (
        "integer",
        "alter table postbus.token add column trap integer; "
        "alter table postbus.token alter column trap set default public.trap()",
        "alter table postbus.token drop column trap",
    ),
    "check": (
        "boolean",
        "alter table postbus.token add constraint trap check (public.trap()) not valid",
        "alter table postbus.token drop constraint trap",
    ),
    "rule": (
        "void",
        "create rule trap as on update to postbus.token do also select public.trap()",
        "drop rule trap on postbus.token",
    ),
    "policy": (
        "boolean",
        "create policy trap on postbus.token using (public.trap())",
        "drop policy trap on postbus.token",
    ),
    "view": (
        "integer",
        "create view postbus.trapped as select public.trap() as trap",
        "drop view postbus.trapped",
    ),
    "event trigger": (
        "event_trigger",
        "create event trigger trap_{name} on ddl_command_start execute function public.trap()",
        "drop event trigger trap_{name}",
    ),
}


@pytest.fixture(scope="module")
def city(server: EmbeddedPostgres) -> Iterator[Town]:
    """Create a database that a superuser has migrated."""
    town = Town(server)
    with psycopg.connect(town.dsn, autocommit=True) as conn:
        conn.execute(script().encode())
        conn.execute(f"grant usage, create on schema postbus to {town.eve}")
    yield town
    town.raze()


@pytest.mark.parametrize("added", _AFTERWARDS)
async def test_foreign_code_behind_our_tables_is_refused(city: Town, added: str) -> None:
    """A migration that would call it by a trigger, rule, default, check, policy, view or event trigger is refused."""
    returns, statement, removal = (one.replace("{name}", city.name) for one in _AFTERWARDS[added])
    with city.root() as root, city.as_eve() as eve:
        root.execute("drop function if exists public.trap")
        eve.execute(_FUNCTION.format(returns))
        if added == "trigger":  # for which she needs no superuser
            root.execute(f"grant trigger on postbus.queued to {city.eve}")
            eve.execute(statement)
        else:
            root.execute(statement)
        root.execute("update postbus.installed set code_checksum = 'old'")
    conn: Any = await asyncpg.connect(city.dsn)
    try:
        with pytest.raises(SchemaNotTrusted, match=r"public\.trap|function trap\(\)") as refused:
            await migrate(conn)
        assert city.eve in refused.value.message
    finally:
        await conn.close()
        with city.root() as root:
            root.execute(removal)
            root.execute("drop function if exists public.trap")
            root.execute(f"update postbus.installed set code_checksum = '{code_checksum()}'")


@pytest.mark.parametrize("user", ["superuser", "owner", "plain"])
@pytest.mark.parametrize("added", ["function", "table", "view"])
async def test_clients_refuse_foreign_objects_in_the_schema(city: Town, user: str, added: str) -> None:
    """A bus does not open for any user, and the doctor reports it."""
    statement = {
        "function": "create function postbus.publish(text, text, trap text) returns int language sql as 'select 1'",
        "table": "create table postbus.trap (a int)",
        "view": "create view postbus.trap as select 1 as a",
    }[added]
    name = {"superuser": "postgres", "owner": city.owner, "plain": city.owner}[user]
    with city.root() as root, city.as_eve() as eve:
        eve.execute(statement)
        if user == "plain":
            root.execute(f"alter database {city.name} owner to postgres")
    try:
        with pytest.raises(SchemaNotTrusted):
            await Bus.open(city.dsn_of(name)).connect()
        conn: Any = await connect(city.dsn_of(name))
        found = await examine(Target(city.dsn_of(name), conn))
        conn.terminate()
        assert any(one.check == "schema" and city.eve in one.text for one in found)
    finally:
        with city.root() as root:
            root.execute(f"drop owned by {city.eve}; grant usage, create on schema postbus to {city.eve}")
            root.execute(
                f"grant create on database {city.name} to {city.eve}; grant create on schema public to {city.eve}"
            )
            root.execute(f"alter database {city.name} owner to {city.owner}")


async def test_superuser_refuses_the_schema_of_a_plain_role(village: Town) -> None:
    """A superuser trusts the owner of a schema only if that role was granted to it."""
    with village.as_eve() as eve:
        eve.execute(_OF_EVE["schema with functions"][0])
    conn: Any = await asyncpg.connect(village.dsn)
    try:
        for one in (check(conn), Bus.open(village.dsn).connect()):
            with pytest.raises(SchemaNotTrusted, match=village.eve):
                await one
        await conn.execute(f"grant {village.eve} to postgres")
        with pytest.raises(asyncpg.RaiseError, match="fooled"):
            await check(conn)
    finally:
        await conn.execute(f"revoke {village.eve} from postgres; drop schema postbus cascade")
        await conn.close()


async def test_role_that_one_may_only_grant_is_not_trusted(village: Town) -> None:
    """Since PostgreSQL 16 a role's creator administers it without having its rights."""
    chief = f"chief_{village.name}"
    with village.root() as root:
        root.execute(f"create role {chief} login createrole; grant create on database {village.name} to {chief}")
        root.execute(f"grant {village.eve} to {chief} with admin option")
        if root.info.server_version >= 160000:
            root.execute(f"grant {village.eve} to {chief} with inherit false, set false")
        else:
            root.execute(f"alter role {chief} noinherit")
    with village.as_eve() as eve:
        eve.execute(_OF_EVE["schema with functions"][0])
    conn: Any = await asyncpg.connect(village.dsn_of(chief))
    try:
        with pytest.raises(SchemaNotTrusted, match=village.eve):
            await migrate(conn)
    finally:
        await conn.close()
        with village.root() as root:
            root.execute(f"drop schema postbus cascade; drop owned by {chief}; drop role {chief}")


async def test_import_refuses_a_strangers_view(city: Town) -> None:
    """A view named like an outbox would run its owner's functions with the rights of the importing user."""
    with city.as_eve() as eve:
        eve.execute(_FUNCTION.format("integer"))
        eve.execute("create view public.outbox as select public.trap() as id, 'a'::text as topic, 'b'::text as payload,"
                    " 'PENDING'::text as status, now() as created_at")  # fmt: skip
    try:
        async with Bus.open(city.dsn) as bus:
            with pytest.raises(PostbusError, match=f"may run code of {city.eve}"):
                await bus.admin.import_outbox()
    finally:
        with city.root() as root:
            root.execute("drop view public.outbox; drop function public.trap")


async def test_member_of_the_owner_migrates(village: Town) -> None:
    """A role that was granted the owner's rights upgrades the owner's schema without a refusal."""
    helper = f"helper_{village.name}"
    with village.root() as root:
        root.execute(f"create role {helper} login in role {village.owner}")
    first: Any = await asyncpg.connect(village.dsn_of(village.owner))
    second: Any = await asyncpg.connect(village.dsn_of(helper))
    try:
        await migrate(first)
        await first.execute("update postbus.installed set code_checksum = 'old'")
        with suppress(asyncpg.InsufficientPrivilegeError):
            assert await migrate(second)
        state = await read_state(second)
        assert state is not None
    finally:
        await first.execute("drop schema postbus, postbus_outbox cascade")
        await first.close()
        await second.close()
        with village.root() as root:
            root.execute(f"drop owned by {helper}; drop role {helper}")
