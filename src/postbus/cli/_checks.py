"""What the doctor looks at. Each check is a function of its own, and says what to do about what it finds."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import asyncpg

from postbus._db import migrator
from postbus._db.commit import begin, is_lost, roll_back
from postbus._db.connect import connect, given_name
from postbus._db.error_map import DRIVER_ERRORS, translate
from postbus._db.roles import former, quoted, read_roles
from postbus.cli._render import counted, duration
from postbus.errors import RestoredElsewhere, SchemaError
from postbus.health import GroupFinding, look_at_groups

_OLDEST_SERVER = 140000
_FEW_CONNECTIONS = 20
_LONG = timedelta(minutes=5)
_CLOCKS_APART = 2.0
_HEARD_WITHIN = 3.0
_STUCK_AFTER = timedelta(hours=1)


class Level(StrEnum):
    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do about it."""

    check: str
    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Target:
    """What the checks look at."""

    dsn: str = field(repr=False)
    conn: Any


Check = Callable[[Target], Awaitable[list[Finding]]]


def _ok(check: str, text: str) -> list[Finding]:
    return [Finding(check, Level.OK, text)]


async def version(patient: Target) -> list[Finding]:
    number = int(await patient.conn.fetchval("select current_setting('server_version_num')"))
    text = "PostgreSQL " + await patient.conn.fetchval("select current_setting('server_version')")
    if number < _OLDEST_SERVER:
        return [Finding("version", Level.ERROR, f"{text} is too old", "upgrade the server to 14 or newer")]
    return _ok("version", text)


async def schema(patient: Target) -> list[Finding]:
    try:
        await migrator.check(patient.conn)
    except SchemaError as error:
        return [Finding("schema", Level.ERROR, error.message, error.remedy)]
    state = await migrator.read_state(patient.conn)
    assert state is not None
    text = f"migration {state.migrations}, functions of postbus {state.code_version}"
    if not state.is_current:
        return [
            Finding(
                "schema",
                Level.INFO,
                f"{text}, newer than this installation",
                "upgrade this one when it suits",
            )
        ]
    return _ok("schema", text)


async def roles(patient: Target) -> list[Finding]:
    known = await read_roles(patient.conn)
    notes = [Finding("roles", Level.INFO, one.text, one.statement) for one in await former(patient.conn)]
    if missing := [role.name for role in known if not role.is_there]:
        remedy = "; ".join(f"create role {quoted(name)} nologin" for name in missing) + _GRANT_AGAIN
        return [Finding("roles", Level.WARNING, f"missing: {', '.join(missing)}", remedy), *notes]
    if new := [role.name for role in known if not role.has_rights]:
        return [Finding("roles", Level.WARNING, f"without their rights: {', '.join(new)}", "postbus migrate"), *notes]
    user = await patient.conn.fetchrow(
        "select current_user as name, rolsuper from pg_roles where rolname = current_user"
    )
    names = ", ".join(role.name for role in known)
    if user["rolsuper"]:
        return [*_ok("roles", f"{names}; {user['name']} is a superuser, and may do anything"), *notes]
    granted = [role.name for role in known if await patient.conn.fetchval(_HAS_ROLE, role.name)]
    if not granted:
        remedy = f"grant {quoted(known[0].name)} to {quoted(user['name'])}, or another"
        return [Finding("roles", Level.WARNING, f"{user['name']} has none of {names}", remedy), *notes]
    return [*_ok("roles", f"{names}; {user['name']} has {', '.join(granted)}"), *notes]


_HAS_ROLE = "select pg_has_role(current_user, $1::text, 'member')"
_GRANT_AGAIN = "; then, to grant them their rights: postbus migrate"
_HARMFUL = (
    ("fsync", "off", Level.ERROR, "a crash of the machine can destroy the database"),
    ("full_page_writes", "off", Level.ERROR, "a crash of the machine can damage the database"),
    ("synchronous_commit", "off", Level.WARNING, "a crash of the server can lose published messages"),
    ("autovacuum", "off", Level.WARNING, "tables of the queue will grow, and claims slow down"),
)  # fmt: skip


async def settings(patient: Target) -> list[Finding]:
    names = [name for name, *_ in _HARMFUL]
    rows = await patient.conn.fetch(
        "select name, setting, source, quote_ident(current_user) as role, quote_ident(current_database()) as database "
        "from pg_settings where name = any ($1)",
        names,
    )
    found = {row["name"]: row for row in rows}
    bad = [
        Finding(
            "settings",
            level,
            f"{name} is {value}: {harm}",
            _to_set_right(found[name]),
        )
        for name, value, level, harm in _HARMFUL
        if name in found and found[name]["setting"] == value
    ]
    return bad or _ok("settings", ", ".join(f"{name} {found[name]['setting']}" for name in names))


def _to_set_right(row: Any) -> str:
    """What is set for a role, a database or a connection hides what holds for the server."""
    name, role, database = row["name"], row["role"], row["database"]
    return {
        "user": f"alter role {role} reset {name}",
        "database": f"alter database {database} reset {name}",
        "database user": f"alter role {role} in database {database} reset {name}",
        "client": "leave it out of the DSN's options, or of PGOPTIONS",
        "command line": "start the server without it on its command line",
    }.get(row["source"], f"alter system set {name} = on; select pg_reload_conf()")


async def connections(patient: Target) -> list[Finding]:
    row = await patient.conn.fetchrow(
        "select current_setting('max_connections')::int "
        "- current_setting('superuser_reserved_connections')::int as most, "
        "(select count(*) from pg_stat_activity where backend_type = 'client backend') as used"
    )
    text = f"{row['used']} of {row['most']} in use"
    remedy = "raise max_connections, or put a connection pooler before the server"
    if row["most"] < _FEW_CONNECTIONS:
        return [Finding("connections", Level.WARNING, f"{text}; a worker uses up to ten or more", remedy)]
    if row["used"] > 0.8 * row["most"]:
        return [Finding("connections", Level.WARNING, text, remedy)]
    return _ok("connections", text)


async def transactions(patient: Target) -> list[Finding]:
    """Old transactions keep dead rows alive, which a queue has many of."""
    rows = await patient.conn.fetch(
        "select pid, usename, application_name, state, clock_timestamp() - xact_start as age "
        "from pg_stat_activity where pid <> pg_backend_pid() and xact_start is not null "
        "and backend_type = 'client backend' order by xact_start limit 3"
    )
    old = [row for row in rows if row["age"] > _LONG]
    if not old:
        return _ok("transactions", f"the oldest is {duration(rows[0]['age'])} old" if rows else "none is open")
    timeout = await patient.conn.fetchval("select current_setting('idle_in_transaction_session_timeout')")
    return [_old_transaction(row, has_timeout=timeout != "0") for row in old]


def _old_transaction(row: Any, *, has_timeout: bool) -> Finding:
    who = " ".join(filter(None, (row["usename"], row["application_name"])))
    text = f"pid {row['pid']} ({who}, {row['state']}) has had one open for {duration(row['age'])}"
    remedy = f"let it end, or end it: select pg_terminate_backend({row['pid']})"
    if str(row["state"]).startswith("idle in transaction") and not has_timeout:
        remedy += "; and set idle_in_transaction_session_timeout, which is 0"
    return Finding("transactions", Level.WARNING, text, remedy)


async def prepared_transactions(patient: Target) -> list[Finding]:
    rows = await patient.conn.fetch(
        "select gid, database, clock_timestamp() - prepared as age from pg_prepared_xacts "
        "where prepared < clock_timestamp() - $1::interval order by prepared limit 3",
        _LONG,
    )
    return [
        Finding(
            "prepared transactions",
            Level.WARNING,
            f"{row['gid']!r} has been lying around for {duration(row['age'])}",
            f"in database {row['database']}: commit prepared '{row['gid']}', or: rollback prepared '{row['gid']}'",
        )
        for row in rows
    ] or _ok("prepared transactions", "none is lying around")


async def replication_slots(patient: Target) -> list[Finding]:
    rows = await patient.conn.fetch(
        "select slot_name, age(xmin) as age from pg_replication_slots where xmin is not null and not active "
        "order by age(xmin) desc limit 3"
    )
    return [
        Finding(
            "replication slots",
            Level.WARNING,
            f"{row['slot_name']!r} is not in use and holds back the cleaning by {row['age']} transactions",
            f"start its standby; or, if that is gone for good: select pg_drop_replication_slot('{row['slot_name']}')",
        )
        for row in rows
    ] or _ok("replication slots", "none holds back the cleaning")


async def compression(patient: Target) -> list[Finding]:
    has_lz4 = await patient.conn.fetchval(
        "select coalesce('lz4' = any (enumvals), false) from pg_settings where name = 'default_toast_compression'"
    )
    if has_lz4:
        return _ok("compression", "lz4 is there for large payloads")
    return [Finding("compression", Level.INFO, "this server has no lz4: large payloads are stored uncompressed")]


async def clock(patient: Target) -> list[Finding]:
    before = datetime.now(UTC)
    servers = await patient.conn.fetchval("select clock_timestamp()")
    after = datetime.now(UTC)
    apart = (servers - (before + (after - before) / 2)).total_seconds()
    text = f"the server's clock is {abs(apart):.3f} s {'ahead' if apart > 0 else 'behind'}"
    if abs(apart) > _CLOCKS_APART:
        return [Finding("clock", Level.WARNING, text, "synchronise both by NTP: --deliver-at means the server's clock")]
    return _ok("clock", text)


async def listening(patient: Target) -> list[Finding]:
    channel = f"postbus_doctor_{secrets.token_hex(8)}"
    heard = asyncio.Event()
    listener = await connect(patient.dsn)
    try:
        await listener.add_listener(channel, lambda *_: heard.set())
        await patient.conn.execute("select pg_catalog.pg_notify($1, '')", channel)
        async with asyncio.timeout(_HEARD_WITHIN):
            await heard.wait()
    except TimeoutError:
        remedy = "give workers a DSN that goes to the server itself, or use session pooling"
        text = "LISTEN does not work, as behind pgbouncer in transaction mode: consumers poll every second"
        return [Finding("listen", Level.WARNING, text, remedy)]
    finally:
        listener.terminate()
    return _ok("listen", "consumers can be woken up")


async def workers(patient: Target) -> list[Finding]:
    rows = await patient.conn.fetch("select name, silent_for, is_alive from postbus.workers order by silent_for desc")
    alive = [row["name"] for row in rows if row["is_alive"]]
    started_again = {given_name(name) for name in alive}
    silent = [row for row in rows if not row["is_alive"] and given_name(row["name"]) not in started_again]
    waiting = await patient.conn.fetchval("select coalesce(sum(waiting), 0)::bigint from postbus.topics")
    found = _ok("workers", f"{len(alive)} alive")
    if not alive and waiting:
        text = f"none is alive, though messages wait: {waiting}"
        found = [Finding("workers", Level.WARNING, text, "start one: postbus worker MODULE:BUS")]
    if silent:
        text = f"silent for up to {duration(silent[0]['silent_for'])}: {', '.join(row['name'] for row in silent[:5])}"
        text += f" and {len(silent) - 5} more" if len(silent) > 5 else ""
        remedy = "look whether their processes live; dead ones are forgotten after a day"
        found.append(Finding("workers", Level.WARNING, text, remedy))
    return found


async def leases(patient: Target) -> list[Finding]:
    row = await patient.conn.fetchrow(
        "select count(*) as count, clock_timestamp() - min(at) as age from postbus.messages "
        "where state = 'leased' and at < clock_timestamp() - interval '15 seconds'"
    )
    if not row["count"]:
        return _ok("leases", "none has expired without being returned")
    have = "has" if row["count"] == 1 else "have"
    text = f"{counted(row['count'], 'message')} {have} an expired lease, the oldest for {duration(row['age'])}"
    return [Finding("leases", Level.WARNING, text, "start a worker: each one returns expired leases every second")]


async def topics(patient: Target) -> list[Finding]:
    rows = await patient.conn.fetch("select name, dead, waiting, paused_at from postbus.topics order by name")
    found = [_paused(row) for row in rows if row["paused_at"] is not None]
    dead = {row["name"]: row["dead"] for row in rows if row["dead"]}
    if dead:
        listed = ", ".join(f"{count} in {name}" for name, count in dead.items())
        found.append(Finding("dead letters", Level.WARNING, listed, "postbus dead-letters list"))
    else:
        found += _ok("dead letters", "none")
    return found


async def groups(patient: Target) -> list[Finding]:
    """The same as `postbus groups check`; the check of dead letters has those of groups."""
    found = [
        Finding("groups", Level(one.level), ": ".join(filter(None, (_whose(one), one.text))), one.remedy)
        for one in await look_at_groups(patient.conn.fetch, _STUCK_AFTER)
        if one.kind != "dead_letters"
    ]
    count = await patient.conn.fetchval("select count(*) from postbus.groups where state <> 'CANCELLED'")
    return found or _ok("groups", f"{count}, none of them in trouble" if count else "none")


def _whose(one: GroupFinding) -> str:
    return " on ".join(filter(None, (one.group, one.topic)))


async def sweeping(patient: Target) -> list[Finding]:
    row = await patient.conn.fetchrow("select healthy, reason, backlog, processes from postbus.sweep_health()")
    if row["healthy"]:
        return _ok("sweeping", "keeps up; nothing is left over" if not row["backlog"] else "keeps up")
    remedy = "see its jobs: postbus sweep show; set them, such as: postbus sweep set --preset high_throughput"
    if not row["processes"]:
        remedy = "start a worker or postbus serve, or: postbus sweep --forever; see its jobs: postbus sweep show"
    return [Finding("sweeping", Level.WARNING, row["reason"], remedy)]


async def restored(patient: Target) -> list[Finding]:
    """A database that was restored from a dump has cursors that mean nothing there."""
    if not await patient.conn.fetchval("select has_function_privilege('postbus.check_cluster()', 'execute')"):
        return [Finding("restored", Level.INFO, "this user may not look whether the database was restored from a dump")]
    try:
        await patient.conn.execute("select postbus.check_cluster()")
    except asyncpg.PostgresError as error:
        told = translate(error)
        if not isinstance(told, RestoredElsewhere):
            raise
        return [Finding("restored", Level.WARNING, f"{told.message}; groups do not work", told.remedy)]
    source = await patient.conn.fetchval("select postbus.source()")
    return _ok("restored", f"the places of groups belong to this server; messages have the source {source}")


def _paused(row: Any) -> Finding:
    text = f"{row['name']} is paused, {row['waiting']} messages wait"
    return Finding("topics", Level.INFO, text, f"postbus topics resume {row['name']}")


ON_EVERY_SERVER: tuple[Check, ...] = (
    version,
    settings,
    connections,
    transactions,
    prepared_transactions,
    replication_slots,
    compression,
    clock,
    listening,
)
WITH_THE_SCHEMA: tuple[Check, ...] = (roles, workers, leases, topics, groups, sweeping, restored)


async def examine(patient: Target) -> list[Finding]:
    """All checks. One that the user may not make is a finding too."""
    findings = [finding for check in ON_EVERY_SERVER for finding in await _made(check, patient)]
    of_the_schema = await _made(schema, patient)
    findings += of_the_schema
    if all(finding.level is not Level.ERROR for finding in of_the_schema):
        findings += [finding for check in WITH_THE_SCHEMA for finding in await _made(check, patient)]
    return findings


async def _pinned(check: Check, patient: Target) -> list[Finding]:
    """Made in a transaction, whose search path is ours also behind a pooler. It changes nothing."""
    await begin(patient.conn)
    try:
        return await check(patient)
    finally:
        if not is_lost(patient.conn):
            await roll_back(patient.conn)


async def _made(check: Check, patient: Target) -> list[Finding]:
    name = check.__name__.replace("_", " ")
    try:
        if check is listening:  # of which only a commit tells
            return await check(patient)
        return await _pinned(check, patient)
    except asyncpg.InsufficientPrivilegeError as error:
        return [
            Finding(
                name,
                Level.WARNING,
                f"cannot look: {error}",
                "grant this user the role observer of this database, postbus_observer_DATABASE",
            )
        ]
    except DRIVER_ERRORS as error:
        told = translate(error)
        return [Finding(name, Level.ERROR, told.message if told else str(error), told.remedy if told else "")]
