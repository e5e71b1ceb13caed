"""Checks of the schema and its contents."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg

from postbus._db import migrator
from postbus._db.error_map import translate
from postbus._db.process import given_name
from postbus._db.roles import former, quoted, read_roles
from postbus._db.statements.health import look_at_groups
from postbus._runtime.visible_text import counted
from postbus.cli._doctor.finding import Check, Finding, Level, Target, ok
from postbus.cli._render import duration
from postbus.errors import RestoredElsewhere, SchemaError
from postbus.health import GroupFinding

_STUCK_AFTER = timedelta(hours=1)
_HAS_ROLE = "select pg_has_role(current_user, $1::text, 'member')"
_GRANT_AGAIN = "; then, to grant them their rights: postbus migrate"


async def schema(target: Target) -> list[Finding]:
    try:
        await migrator.check(target.conn)
    except SchemaError as error:
        return [Finding("schema", Level.ERROR, error.message, error.remedy)]
    state = await migrator.read_state(target.conn)
    assert state is not None
    text = f"migration {state.migrations}, functions of postbus {state.code_version}"
    if not state.is_current:
        return [
            Finding(
                "schema",
                Level.INFO,
                f"{text}, newer than this installation",
                "upgrade this installation when it suits you",
            )
        ]
    return ok("schema", text)


async def roles(target: Target) -> list[Finding]:
    known = await read_roles(target.conn)
    notes = [Finding("roles", Level.INFO, one.text, one.statement) for one in await former(target.conn)]
    if missing := [role.name for role in known if not role.is_there]:
        remedy = "; ".join(f"create role {quoted(name)} nologin" for name in missing) + _GRANT_AGAIN
        return [Finding("roles", Level.WARNING, f"missing: {', '.join(missing)}", remedy), *notes]
    if new := [role.name for role in known if not role.has_rights]:
        return [Finding("roles", Level.WARNING, f"without their rights: {', '.join(new)}", "postbus migrate"), *notes]
    user = await target.conn.fetchrow(
        "select current_user as name, rolsuper from pg_roles where rolname = current_user"
    )
    names = ", ".join(role.name for role in known)
    if user["rolsuper"]:
        return [*ok("roles", f"{names}; {user['name']} is a superuser, and may do anything"), *notes]
    granted = [role.name for role in known if await target.conn.fetchval(_HAS_ROLE, role.name)]
    if not granted:
        remedy = f"grant {quoted(known[0].name)} to {quoted(user['name'])}, or another"
        return [Finding("roles", Level.WARNING, f"{user['name']} has none of {names}", remedy), *notes]
    return [*ok("roles", f"{names}; {user['name']} has {', '.join(granted)}"), *notes]


async def workers(target: Target) -> list[Finding]:
    rows = await target.conn.fetch("select name, silent_for, is_alive from postbus.workers order by silent_for desc")
    alive = [row["name"] for row in rows if row["is_alive"]]
    started_again = {given_name(name) for name in alive}
    silent = [row for row in rows if not row["is_alive"] and given_name(row["name"]) not in started_again]
    waiting = await target.conn.fetchval("select coalesce(sum(waiting), 0)::bigint from postbus.topics")
    found = ok("workers", f"{len(alive)} alive")
    if not alive and waiting:
        text = f"none is alive, but messages wait: {waiting}"
        found = [Finding("workers", Level.WARNING, text, "start one: postbus worker MODULE:BUS")]
    if silent:
        text = f"silent for up to {duration(silent[0]['silent_for'])}: {', '.join(row['name'] for row in silent[:5])}"
        text += f" and {len(silent) - 5} more" if len(silent) > 5 else ""
        remedy = "check whether their processes live; dead ones are forgotten after a day"
        found.append(Finding("workers", Level.WARNING, text, remedy))
    return found


async def leases(target: Target) -> list[Finding]:
    row = await target.conn.fetchrow(
        "select count(*) as count, clock_timestamp() - min(at) as age from postbus.messages "
        "where state = 'leased' and at < clock_timestamp() - interval '15 seconds'"
    )
    if not row["count"]:
        return ok("leases", "none has expired without being returned")
    have = "has" if row["count"] == 1 else "have"
    text = f"{counted(row['count'], 'message')} {have} an expired lease, the oldest for {duration(row['age'])}"
    return [Finding("leases", Level.WARNING, text, "start a worker: each one returns expired leases every second")]


async def topics(target: Target) -> list[Finding]:
    rows = await target.conn.fetch("select name, dead, waiting, paused_at from postbus.topics order by name")
    found = [_paused(row) for row in rows if row["paused_at"] is not None]
    dead = {row["name"]: row["dead"] for row in rows if row["dead"]}
    if dead:
        listed = ", ".join(f"{count} in {name}" for name, count in dead.items())
        found.append(Finding("dead letters", Level.WARNING, listed, "postbus dead-letters list"))
    else:
        found += ok("dead letters", "none")
    return found


def _paused(row: Any) -> Finding:
    text = f"{row['name']} is paused, {row['waiting']} messages wait"
    return Finding("topics", Level.INFO, text, f"postbus topics resume {row['name']}")


async def groups(target: Target) -> list[Finding]:
    """The findings of `postbus groups check`, without dead letters, which have a check of their own."""
    found = [
        Finding("groups", Level(one.level), ": ".join(filter(None, (_whose(one), one.text))), one.remedy)
        for one in await look_at_groups(target.conn.fetch, _STUCK_AFTER)
        if one.kind != "dead_letters"
    ]
    count = await target.conn.fetchval("select count(*) from postbus.groups where state <> 'CANCELLED'")
    return found or ok("groups", f"{count}, none of them in trouble" if count else "none")


def _whose(one: GroupFinding) -> str:
    return " on ".join(filter(None, (one.group, one.topic)))


async def sweeping(target: Target) -> list[Finding]:
    row = await target.conn.fetchrow("select healthy, reason, backlog, processes from postbus.sweep_health()")
    if row["healthy"]:
        return ok("sweeping", "keeps up; nothing is left to remove" if not row["backlog"] else "keeps up")
    remedy = "see its jobs: postbus sweep show; let it do more: postbus sweep set --preset high_throughput"
    if not row["processes"]:
        remedy = "start a worker or postbus serve, or: postbus sweep --forever; see its jobs: postbus sweep show"
    return [Finding("sweeping", Level.WARNING, row["reason"], remedy)]


async def restored(target: Target) -> list[Finding]:
    """In a database that was restored from a dump, the positions of groups mean nothing."""
    if not await target.conn.fetchval("select has_function_privilege('postbus.check_cluster()', 'execute')"):
        return [
            Finding("restored", Level.INFO, "this user may not check whether the database was restored from a dump")
        ]
    try:
        await target.conn.execute("select postbus.check_cluster()")
    except asyncpg.PostgresError as error:
        told = translate(error)
        if not isinstance(told, RestoredElsewhere):
            raise
        return [Finding("restored", Level.WARNING, f"{told.message}; groups do not work", told.remedy)]
    source = await target.conn.fetchval("select postbus.source()")
    return ok("restored", f"the positions of groups belong to this server; messages have the source {source}")


SCHEMA_CHECKS: tuple[Check, ...] = (roles, workers, leases, topics, groups, sweeping, restored)
