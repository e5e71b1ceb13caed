"""A role of one database gives no rights in another, however databases are named, renamed or copied."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import psycopg
import pytest
from psycopg import sql

from postbus import Bus
from postbus._db.connect import connect
from postbus._db.migrator import migrate, migrate_reporting
from postbus._db.roles import GRANTS, report_roles
from postbus.cli._doctor.finding import Level, Target
from postbus.cli._doctor.schema import roles as look_at_roles
from postbus.embedded import EmbeddedPostgres

pytestmark = pytest.mark.attack("roles of other databases")

_ROLES = ("producer", "consumer", "observer", "operator", "admin")
_WORK = {
    "producer": "select postbus.publish('t', 'x'::text)",
    "consumer": "select * from postbus.claim('t', 'm', 1)",
    "observer": "select count(*) from postbus.messages",
    "operator": "select postbus.pause_topic('t')",
    "admin": "select postbus.purge_topic('t')",
}


class Country:
    """Databases of one server, and a user for each role of the first one."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        self.mark = secrets.token_hex(4)
        self.made: list[str] = []
        self.users: list[str] = []
        self.former: list[str] = []

    @contextmanager
    def root(self, database: str | None = None) -> Iterator[Any]:
        dsn = self.server.dsn() if database is None else self.dsn(database)
        with psycopg.connect(dsn, autocommit=True) as conn:
            yield conn

    def dsn(self, database: str, user: str = "postgres") -> str:
        address = urlsplit(self.server.dsn())
        return address._replace(netloc=f"{user}@", path=f"/{quote(database, safe='')}").geturl()

    def database(self, name: str, *, template: str = "template0", owner: str = "postgres") -> str:
        with self.root() as root:
            root.execute(
                sql.SQL("create database {} template {} owner {}").format(
                    sql.Identifier(name), sql.Identifier(template), sql.Identifier(owner)
                )
            )
        self.made.append(name)
        return name

    def user(self, name: str, *options: str) -> str:
        with self.root() as root:
            root.execute(f"create role {name} login {' '.join(options)}")
        self.users.append(name)
        return name

    async def migrate(self, database: str, user: str = "postgres") -> list[str]:
        conn = await connect(self.dsn(database, user))
        try:
            return await migrate(conn)
        finally:
            await conn.close()

    def names(self, database: str) -> dict[str, str]:
        with self.root(database) as root:
            return dict(root.execute("select role, name from postbus.roles()").fetchall())

    def raze(self) -> None:
        with self.root() as root:
            for name in self.made:
                root.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
            for user in self.users:
                root.execute(f"drop role {user}")
            found = "select rolname from pg_roles where starts_with(rolname, 'postbus_') and strpos(rolname, %s) > 0"
            for (role,) in root.execute(found, [self.mark]).fetchall():
                root.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
            for role in self.former:
                root.execute(f"drop role if exists {role}")


@pytest.fixture(scope="module")
def country(server: EmbeddedPostgres) -> Iterator[Country]:
    made = Country(server)
    yield made
    made.raze()


@pytest.fixture
async def shop(country: Country) -> str:
    """Create a database with a user for each of its roles, named after the role."""
    name = f"shop_{country.mark}"
    if name not in country.made:
        country.database(name)
        await country.migrate(name)
        with country.root(name) as root:
            for role in _ROLES:
                root.execute(f"grant postbus_{role}_{name} to {country.user(f'{role}_{country.mark}')}")
            root.execute("select postbus.create_topic('t')")
    return name


@pytest.fixture
async def bank(country: Country) -> str:
    """Create another database on that server."""
    name = f"bank_{country.mark}"
    if name not in country.made:
        country.database(name)
        await country.migrate(name)
        with country.root(name) as root:
            root.execute("select postbus.create_topic('t')")
    return name


def _rights(country: Country, database: str, user: str) -> list[str]:
    """Return everything of Postbus that a user may call, read or use in a database."""
    with country.root(database) as root:
        rows = root.execute(
            """
            select f.oid::regprocedure::text from pg_proc f join pg_namespace n on n.oid = f.pronamespace
             where n.nspname like 'postbus%%' and has_function_privilege(%(user)s, f.oid, 'execute')
             union all
            select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
             where n.nspname like 'postbus%%' and c.relkind in ('r', 'v', 'p', 'm')
               and has_table_privilege(%(user)s, c.oid, 'select, insert, update, delete, truncate, trigger, references')
             union all
            select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
             where n.nspname like 'postbus%%'
               and case when c.relkind = 'S' then has_sequence_privilege(%(user)s, c.oid, 'usage, select, update') end
             union all
            select n.nspname from pg_namespace n
             where n.nspname like 'postbus%%' and has_schema_privilege(%(user)s, n.oid, 'usage, create')
            """,
            {"user": user},
        ).fetchall()
    return [row[0] for row in rows]


@pytest.mark.parametrize("role", _ROLES)
async def test_role_of_one_database_has_no_rights_in_another(country: Country, shop: str, bank: str, role: str) -> None:
    """It works in its own database. In another it can use no function, view, table or sequence."""
    user = f"{role}_{country.mark}"
    for database, is_home in ((shop, True), (bank, False)):
        conn: Any = await asyncpg.connect(country.dsn(database, user))
        try:
            if is_home:
                await conn.fetch(_WORK[role])
            else:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await conn.fetch(_WORK[role])
        finally:
            await conn.close()
    assert _rights(country, bank, user) == []


@pytest.mark.parametrize("role", ["producer", "consumer", "observer", "admin"])
async def test_server_wide_role_loses_its_rights(country: Country, bank: str, role: str) -> None:
    """A migration revokes the rights of earlier versions' roles, and names the statement that grants new ones."""
    former, user = f"postbus_{role}", country.user(f"old_{role}_{country.mark}")
    new = f"postbus_{role}_{bank}"
    with country.root(bank) as root:
        if not root.execute("select 1 from pg_roles where rolname = %s", [former]).fetchone():
            root.execute(f"create role {former}")
            country.former.append(former)
        root.execute(f"grant {former} to {user}; grant usage on schema postbus to {former}")
        root.execute(f"grant execute on all functions in schema postbus to {former}")
        root.execute(f"grant select, delete on all tables in schema postbus to {former}")
        root.execute("update postbus.installed set code_checksum = 'old'")
    conn = await connect(country.dsn(bank))
    try:
        _, taken = await migrate_reporting(conn)
        first, later = await report_roles(conn, taken), await report_roles(conn)
        assert _rights(country, bank, user) == []
        for told in (first, later):
            assert [one.statement for one in told.notes if former in one.statement.split()] == [
                f"grant {new} to {former}"
            ]
        await conn.execute(f"grant {new} to {former}")
        assert _rights(country, bank, user)
        assert not [one for one in (await report_roles(conn)).notes if former in one.statement.split()]
    finally:
        await conn.execute(f"revoke {new} from {former}; revoke {former} from {user}")
        await conn.close()


@pytest.mark.parametrize("way", ["renamed", "copied"])
async def test_renamed_or_copied_database_gets_its_own_roles(country: Country, shop: str, way: str) -> None:
    """Its next migration creates roles, revokes the rights of the former ones, and says so."""
    first = country.database(f"first_{way}_{country.mark}", template=shop)
    await country.migrate(first)
    member = country.user(f"member_{way}_{country.mark}")
    second = f"second_{way}_{country.mark}"
    with country.root() as root:
        root.execute(f"grant postbus_consumer_{first} to {member}")
        if way == "renamed":
            root.execute(f"alter database {first} rename to {second}")
            country.made.append(second)
        else:
            country.database(second, template=first)
    assert _rights(country, second, member)
    conn = await connect(country.dsn(second))
    try:
        assert {one.level for one in await look_at_roles(Target(country.dsn(second), conn))} == {Level.WARNING}

        applied, taken = await migrate_reporting(conn)

        assert applied == [GRANTS]
        assert _rights(country, second, member) == []
        statements = [one.statement for one in (await report_roles(conn, taken)).notes]
        assert f"grant postbus_consumer_{second} to postbus_consumer_{first}" in statements
        assert {one.level for one in await look_at_roles(Target(country.dsn(second), conn))} <= {Level.OK, Level.INFO}
        assert await migrate(conn) == []
    finally:
        await conn.close()


_NAMES = (
    "Shop",
    "a shop",
    'a"shop',
    "a;drop role x;--",
    "läden" * 5,
    "x" * 54,
    "s" * 35,
    "ü" * 27,
    "%s%I",
    "$1",
    "'",
    "select",
)


@pytest.mark.parametrize("name", range(len(_NAMES)))
async def test_names_of_databases_are_taken_literally(country: Country, name: int) -> None:
    """Whatever its name, a database has five working roles with names that are short enough."""
    database = country.database(f"{_NAMES[name]}{country.mark}", template=f"shop_{country.mark}")
    await country.migrate(database)

    names = country.names(database)

    assert len(set(names.values())) == 5
    assert all(len(one.encode()) <= 63 for one in names.values())
    with country.root(database) as root:
        assert root.execute("select bool_and(is_there and has_rights) from postbus.roles()").fetchone() == (True,)
        root.execute(sql.SQL("set role {}").format(sql.Identifier(names["producer"])))
        root.execute(_WORK["producer"])
        root.execute("reset role")
        for one in names.values():
            root.execute(sql.SQL("drop owned by {}; drop role {}").format(sql.Identifier(one), sql.Identifier(one)))


async def test_long_database_names_with_the_same_beginning_share_no_role(country: Country, shop: str) -> None:
    """A name that is too long ends with a hash of the whole name."""
    names = "select array(select postbus.role_name('consumer', %s || one) from unnest(array['a', 'b', 'c']) as one)"
    with country.root(shop) as root:
        (found,) = root.execute(names, ["d" * 60]).fetchone()
    assert len(set(found)) == 3
    assert all(len(one) == 63 for one in found)


async def test_owner_without_createrole_can_migrate(country: Country) -> None:
    """Everything works for the owner alone. Roles that an admin creates get their rights by migrating again."""
    owner = country.user(f"owner_{country.mark}", "nosuperuser nocreaterole")
    worker = country.user(f"worker_{country.mark}")
    database = country.database(f"managed_{country.mark}", owner=owner)
    assert GRANTS in await country.migrate(database, owner)
    conn = await connect(country.dsn(database, owner))
    try:
        told = await report_roles(conn)
        statements = [one.statement for one in told.notes]
        assert statements == [f"create role postbus_{role}_{database} nologin" for role in _ROLES]
        assert await migrate(conn) == []
        async with Bus.open(country.dsn(database, owner)) as bus:
            await bus.admin.create_topic("log", semantics="PUB_SUB")
            await bus.send("log", {"n": 1})
            await bus.send("jobs", {"n": 1})
            pulled = await bus.pop("jobs")
            await pulled[0].ack()
            assert len(await bus.pop("log", group="g", start="FROM_BEGINNING")) == 1

        with country.root() as root:
            for statement in statements[:2]:
                root.execute(statement)
            root.execute(f"grant postbus_consumer_{database} to {worker}")
        assert _rights(country, database, worker) == []
        assert await migrate(conn) == [GRANTS]
        assert await migrate(conn) == []

        async with Bus.open(country.dsn(database, worker), migrate=True) as bus:  # there is nothing to do for it
            assert not await bus.pop("jobs")
        other: Any = await asyncpg.connect(country.dsn(database, worker))
        await other.fetch(_WORK["consumer"])
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await other.fetch(_WORK["producer"])
        await other.close()
        assert len((await report_roles(conn)).notes) == 3
    finally:
        await conn.close()


async def test_recreated_role_has_no_rights_until_migrated(country: Country, bank: str) -> None:
    """It is another role of the same name."""
    name = f"postbus_observer_{bank}"
    with country.root(bank) as root:
        root.execute(f"drop owned by {name}; drop role {name}; create role {name}")
    assert _rights(country, bank, name) == []

    assert await country.migrate(bank) == [GRANTS]

    assert _rights(country, bank, name)
