"""Checks of a PostgreSQL server, whatever its databases hold."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

from postbus._db.connect import connect
from postbus.cli._doctor.finding import Check, Finding, Level, Target, ok
from postbus.cli._render import duration

_OLDEST_SERVER = 140000
_FEW_CONNECTIONS = 20
_LONG = timedelta(minutes=5)
_CLOCKS_APART = 2.0
_HEARD_WITHIN = 3.0
_HARMFUL = (
    ("fsync", "off", Level.ERROR, "a crash of the machine can destroy the database"),
    ("full_page_writes", "off", Level.ERROR, "a crash of the machine can damage the database"),
    ("synchronous_commit", "off", Level.WARNING, "a crash of the server can lose published messages"),
    ("autovacuum", "off", Level.WARNING, "tables of queues grow, and claims slow down"),
)  # fmt: skip


async def version(target: Target) -> list[Finding]:
    number = int(await target.conn.fetchval("select current_setting('server_version_num')"))
    text = "PostgreSQL " + await target.conn.fetchval("select current_setting('server_version')")
    if number < _OLDEST_SERVER:
        return [Finding("version", Level.ERROR, f"{text} is too old", "upgrade the server to 14 or newer")]
    return ok("version", text)


async def settings(target: Target) -> list[Finding]:
    names = [name for name, *_ in _HARMFUL]
    rows = await target.conn.fetch(
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
    return bad or ok("settings", ", ".join(f"{name} {found[name]['setting']}" for name in names))


def _to_set_right(row: Any) -> str:
    """The remedy for a setting. A value of a role, a database or a connection hides that of the server."""
    name, role, database = row["name"], row["role"], row["database"]
    return {
        "user": f"alter role {role} reset {name}",
        "database": f"alter database {database} reset {name}",
        "database user": f"alter role {role} in database {database} reset {name}",
        "client": "remove it from the DSN's options, or from PGOPTIONS",
        "command line": "start the server without it on its command line",
    }.get(row["source"], f"alter system set {name} = on; select pg_reload_conf()")


async def connections(target: Target) -> list[Finding]:
    row = await target.conn.fetchrow(
        "select current_setting('max_connections')::int "
        "- current_setting('superuser_reserved_connections')::int as most, "
        "(select count(*) from pg_stat_activity where backend_type = 'client backend') as used"
    )
    text = f"{row['used']} of {row['most']} in use"
    remedy = "raise max_connections, or put a connection pooler before the server"
    if row["most"] < _FEW_CONNECTIONS:
        return [Finding("connections", Level.WARNING, f"{text}; a worker uses ten or more", remedy)]
    if row["used"] > 0.8 * row["most"]:
        return [Finding("connections", Level.WARNING, text, remedy)]
    return ok("connections", text)


async def transactions(target: Target) -> list[Finding]:
    """Old transactions keep dead rows, of which a queue has many."""
    rows = await target.conn.fetch(
        "select pid, usename, application_name, state, clock_timestamp() - xact_start as age "
        "from pg_stat_activity where pid <> pg_backend_pid() and xact_start is not null "
        "and backend_type = 'client backend' order by xact_start limit 3"
    )
    old = [row for row in rows if row["age"] > _LONG]
    if not old:
        return ok("transactions", f"the oldest is {duration(rows[0]['age'])} old" if rows else "none is open")
    timeout = await target.conn.fetchval("select current_setting('idle_in_transaction_session_timeout')")
    return [_old_transaction(row, has_timeout=timeout != "0") for row in old]


def _old_transaction(row: Any, *, has_timeout: bool) -> Finding:
    who = " ".join(filter(None, (row["usename"], row["application_name"])))
    text = f"pid {row['pid']} ({who}, {row['state']}) has had one open for {duration(row['age'])}"
    remedy = f"let it end, or end it: select pg_terminate_backend({row['pid']})"
    if str(row["state"]).startswith("idle in transaction") and not has_timeout:
        remedy += "; and set idle_in_transaction_session_timeout, which is 0"
    return Finding("transactions", Level.WARNING, text, remedy)


async def prepared_transactions(target: Target) -> list[Finding]:
    rows = await target.conn.fetch(
        "select gid, database, clock_timestamp() - prepared as age from pg_prepared_xacts "
        "where prepared < clock_timestamp() - $1::interval order by prepared limit 3",
        _LONG,
    )
    return [
        Finding(
            "prepared transactions",
            Level.WARNING,
            f"{row['gid']!r} has been open for {duration(row['age'])}",
            f"in database {row['database']}: commit prepared '{row['gid']}', or: rollback prepared '{row['gid']}'",
        )
        for row in rows
    ] or ok("prepared transactions", "none is old")


async def replication_slots(target: Target) -> list[Finding]:
    rows = await target.conn.fetch(
        "select slot_name, age(xmin) as age from pg_replication_slots where xmin is not null and not active "
        "order by age(xmin) desc limit 3"
    )
    return [
        Finding(
            "replication slots",
            Level.WARNING,
            f"{row['slot_name']!r} is not in use and holds back vacuum by {row['age']} transactions",
            f"start its standby; or, if that is gone for good: select pg_drop_replication_slot('{row['slot_name']}')",
        )
        for row in rows
    ] or ok("replication slots", "none holds back vacuum")


async def compression(target: Target) -> list[Finding]:
    has_lz4 = await target.conn.fetchval(
        "select coalesce('lz4' = any (enumvals), false) from pg_settings where name = 'default_toast_compression'"
    )
    if has_lz4:
        return ok("compression", "large payloads are compressed with lz4")
    return [Finding("compression", Level.INFO, "this server has no lz4: large payloads are stored uncompressed")]


async def clock(target: Target) -> list[Finding]:
    before = datetime.now(UTC)
    servers = await target.conn.fetchval("select clock_timestamp()")
    after = datetime.now(UTC)
    apart = (servers - (before + (after - before) / 2)).total_seconds()
    text = f"the server's clock is {abs(apart):.3f} s {'ahead' if apart > 0 else 'behind'}"
    if abs(apart) > _CLOCKS_APART:
        return [
            Finding("clock", Level.WARNING, text, "synchronise both clocks by NTP: --deliver-at goes by the server's")
        ]
    return ok("clock", text)


async def listening(target: Target) -> list[Finding]:
    channel = f"postbus_doctor_{secrets.token_hex(8)}"
    heard = asyncio.Event()
    listener = await connect(target.dsn)
    try:
        await listener.add_listener(channel, lambda *_: heard.set())
        await target.conn.execute("select pg_catalog.pg_notify($1, '')", channel)
        async with asyncio.timeout(_HEARD_WITHIN):
            await heard.wait()
    except TimeoutError:
        remedy = "give workers a DSN that goes to the server itself, or use session pooling"
        text = "LISTEN does not work, as behind pgbouncer in transaction mode: consumers poll every second"
        return [Finding("listen", Level.WARNING, text, remedy)]
    finally:
        listener.terminate()
    return ok("listen", "consumers can be woken up")


SERVER_CHECKS: tuple[Check, ...] = (
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
