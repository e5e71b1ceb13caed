"""postbus doctor"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cli.helpers import Cli
from postbus import Bus
from postbus._db import migrator
from postbus._db.roles import GRANTS
from postbus.cli._doctor import schema, server
from postbus.cli._doctor.finding import Finding, Level, Target
from postbus.embedded import EmbeddedPostgres
from support.eventually import eventually
from support.fix_database import Connect

NOWHERE = "postgresql://postgres@127.0.0.1:1/postgres"


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


async def test_doctor_finds_a_healthy_database_well(cli: Cli, roles: Callable[[str], str]) -> None:
    """Every check is made, and none reports a problem."""
    examined = await cli("doctor")
    as_json = await cli.quick("doctor", "--json")

    assert examined.done().out.split()[:2] == ["ok", "connection"]
    found = as_json.done().json
    assert found["ok"]
    made = {one["check"] for one in found["checks"]}
    assert made >= {
        "connection",
        "version",
        "schema",
        "roles",
        "settings",
        "clock",
        "listen",
        "workers",
        "leases",
    }
    assert {one["level"] for one in found["checks"]} <= {"ok", "info"}


async def test_doctor_warnings_have_remedies(cli: Cli, bus: Bus, conn: Any) -> None:
    """Each warning has a remedy, and warnings do not change the exit code."""
    database = await conn.fetchval("select current_database()")
    await conn.execute(f"alter database {database} set synchronous_commit = off")
    await bus.send("jobs", 1)
    await bus.admin.pause_topic("jobs")

    found = (await cli.quick("doctor", "--json")).done().json["checks"]

    bad = {one["check"]: one for one in found if one["level"] in ("warning", "info") and one["remedy"]}
    assert "synchronous_commit is off" in bad["settings"]["text"]
    await conn.execute(bad["settings"]["remedy"])
    again = (await cli.quick("doctor", "--json")).done().json["checks"]
    assert {one["level"] for one in again if one["check"] == "settings"} == {"ok"}
    assert bad["workers"]["text"] == "none is alive, but messages wait: 1"
    assert bad["topics"]["remedy"] == "postbus topics resume jobs"


async def test_doctor_reports_an_unreachable_server(cli: Cli) -> None:
    """The missing connection is an error among the findings. The exit code is 1."""
    cli.env["POSTBUS_DSN"] = NOWHERE

    examined = (await cli.quick("doctor", "--json")).failed(1)

    assert [(one["check"], one["level"]) for one in examined.json["checks"]] == [("connection", "error")]


async def test_doctor_reports_a_missing_schema(cli: Cli, empty_dsn: str) -> None:
    """It is an error whose remedy is to migrate. The exit code is 1."""
    cli.env["POSTBUS_DSN"] = empty_dsn

    examined = (await cli.quick("doctor")).failed(1)

    assert ["error", "schema"] in [line.split()[:2] for line in examined.out.splitlines()]
    assert "postbus migrate --dsn DSN" in examined.out


async def test_doctor_reports_harmful_settings(folder: Path, cli: Cli) -> None:
    """Settings that risk data are errors, and others that only hurt are warnings."""
    settings = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "max_connections": "15"}
    with EmbeddedPostgres.start(folder, settings=settings) as harmful:
        cli.env["POSTBUS_DSN"] = harmful.dsn()
        found = (await cli.quick("doctor", "--json")).failed(1).json["checks"]

    bad = {one["text"].partition(" is ")[0]: one["level"] for one in found if one["check"] == "settings"}
    assert bad == {"fsync": "error", "full_page_writes": "error", "autovacuum": "warning"}
    assert [one["level"] for one in found if one["check"] == "connections"] == ["warning"]


async def test_doctor_reports_the_roles_of_a_plain_user(
    dsn: str, cli: Cli, conn: Any, roles: Callable[[str], str]
) -> None:
    """Without a role it warns, and says what it cannot see."""
    role = f"plain_{conn.get_server_pid()}"
    await conn.execute(f"create role {role} login")
    try:
        cli.env["POSTBUS_DSN"] = urlsplit(dsn)._replace(netloc=f"{role}@").geturl()
        await conn.execute(f"grant {roles('observer')} to {role}")
        seen = (await cli.quick("doctor", "--json")).done().json["checks"]
        await conn.execute(f"revoke {roles('observer')} from {role}")
        await conn.execute(f"grant usage on schema postbus to {role}")
        await conn.execute(f"grant execute on function postbus.schema_state, postbus.roles to {role}")
        blind = (await cli.quick("doctor", "--json")).done().json["checks"]
    finally:
        await conn.execute(f"drop owned by {role}")
        await conn.execute(f"drop role {role}")

    assert any(one["text"].endswith(f"{role} has {roles('observer')}") for one in seen)
    told = {one["check"]: one for one in blind if one["level"] == "warning"}
    assert told["roles"]["text"].startswith(f"{role} has none of {roles('producer')}, ")
    assert told["workers"]["remedy"] == "grant this user the role observer of this database, postbus_observer_DATABASE"


async def test_doctor_reports_an_old_transaction(
    dsn: str, conn: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long transaction is a warning that names its process."""
    monkeypatch.setattr(server, "_LONG", timedelta(0))
    other = await connect()
    await other.execute("begin")

    async def it_is_found() -> None:
        found = await server.transactions(Target(dsn, conn))
        mine = [one for one in found if f"pid {other.get_server_pid()} " in one.text]
        assert levels(mine) == [Level.WARNING]
        assert f"pg_terminate_backend({other.get_server_pid()})" in mine[0].remedy
        assert "idle_in_transaction_session_timeout" in mine[0].remedy

    await eventually(it_is_found)


async def test_doctor_reports_a_prepared_transaction(
    dsn: str, connect_alone: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prepared transaction that nobody ends is a warning."""
    monkeypatch.setattr(server, "_LONG", timedelta(0))
    conn = await connect_alone()
    name = f"doctor-{conn.get_server_pid()}"
    await conn.execute(f"begin; create table x (); prepare transaction '{name}'")
    try:
        found = await server.prepared_transactions(Target(dsn, conn))
    finally:
        await conn.execute(f"rollback prepared '{name}'")

    mine = [one for one in found if name in one.text]
    assert levels(mine) == [Level.WARNING]
    assert f"or: rollback prepared '{name}'" in mine[0].remedy


async def test_doctor_reports_a_silent_worker(dsn: str, conn: Any) -> None:
    """A worker without a heartbeat is a warning, beside living ones."""
    await conn.execute("select postbus.heartbeat('alive', 'host', 1, '{}'), postbus.heartbeat('gone', 'host', 2, '{}')")
    await conn.execute("update postbus.worker set seen_at = seen_at - interval '2 hours' where name = 'gone'")

    alive, gone = await schema.workers(Target(dsn, conn))

    assert (alive.level, alive.text) == (Level.OK, "1 alive")
    assert (gone.level, gone.text) == (Level.WARNING, "silent for up to 2h: gone")


async def test_doctor_ignores_a_silent_worker_that_was_restarted(dsn: str, conn: Any) -> None:
    """A new worker under the same name replaces it."""
    await conn.execute(
        "select postbus.heartbeat('me:1a', 'host', 1, '{}'), postbus.heartbeat('me:2b', 'host', 2, '{}')"
    )
    await conn.execute("update postbus.worker set seen_at = seen_at - interval '2 hours' where name = 'me:1a'")

    (found,) = await schema.workers(Target(dsn, conn))

    assert (found.level, found.text) == (Level.OK, "1 alive")


async def test_doctor_reports_an_expired_lease(dsn: str, bus: Bus, conn: Any) -> None:
    """An expired lease that was not returned means that no worker does it."""
    await bus.send("jobs", 1)
    await conn.fetch("select * from postbus.claim('jobs', 'me', 1)")
    await conn.execute("update postbus.lease set ends_at = ends_at - interval '10 minutes'")

    (found,) = await schema.leases(Target(dsn, conn))

    assert found.level is Level.WARNING
    assert found.text.startswith("1 message has an expired lease, the oldest for 9m")


async def test_doctor_counts_dead_letters(dsn: str, bus: Bus, conn: Any) -> None:
    """They are a warning with their number per topic."""
    await bus.send("jobs", 1)
    claim = await (await bus.connect()).claim("jobs", member="me", max_count=1)
    assert claim.token is not None
    await (await bus.connect()).dead_letter(claim.token, [claim.messages[0].id], "broken", None)

    (found,) = await schema.topics(Target(dsn, conn))

    assert (found.level, found.text) == (Level.WARNING, "1 in jobs")


class Answers:
    """A connection that answers as a server would that a test cannot have."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def fetchval(self, *_: Any) -> Any:
        return self._answers.pop(0)

    fetch = fetchrow = execute = fetchval


async def test_doctor_refuses_a_server_that_is_too_old() -> None:
    """A server below PostgreSQL 14 is an error."""
    assert levels(await server.version(Target("", Answers("130009", "13.9")))) == [Level.ERROR]


async def test_doctor_mentions_a_server_without_lz4() -> None:
    """Missing compression is only information."""
    assert levels(await server.compression(Target("", Answers(None)))) == [Level.INFO]


async def test_doctor_warns_of_differing_clocks() -> None:
    """A server whose clock differs is a warning."""
    (found,) = await server.clock(Target("", Answers(datetime.now(UTC) + timedelta(seconds=90))))

    assert (found.level, "ahead" in found.text) == (Level.WARNING, True)


async def test_doctor_warns_of_an_unused_replication_slot() -> None:
    """The warning names the slot."""
    (found,) = await server.replication_slots(Target("", Answers([{"slot_name": "old", "age": 5000}])))

    assert (found.level, "pg_drop_replication_slot('old')" in found.remedy) == (Level.WARNING, True)


async def test_doctor_warns_when_notifications_do_not_arrive(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a pooler that breaks LISTEN, consumers poll."""
    monkeypatch.setattr(server, "_HEARD_WITHIN", 0.05)

    (found,) = await server.listening(Target(dsn, Answers(None)))

    assert (found.level, "pgbouncer" in found.text) == (Level.WARNING, True)


async def test_doctor_helps_to_recreate_a_missing_role(dsn: str, conn: Any, roles: Callable[[str], str]) -> None:
    """The remedy is first the statement that creates the role, and then to migrate."""
    seen = f"select has_schema_privilege('{roles('observer')}', 'postbus', 'usage')"
    await conn.execute(f"drop owned by {roles('observer')}; drop role {roles('observer')}")
    (missing,) = await schema.roles(Target(dsn, conn))
    statement, migrate = missing.remedy.split("; ")
    assert statement == f"create role {roles('observer')} nologin"
    assert "postbus migrate" in migrate

    await conn.execute(statement)
    (without,) = await schema.roles(Target(dsn, conn))
    assert await migrator.migrate(conn) == [GRANTS]

    assert levels([missing, without]) == [Level.WARNING] * 2
    assert without.remedy == "postbus migrate"
    assert await conn.fetchval(seen)
    assert levels(await schema.roles(Target(dsn, conn))) == [Level.OK]


async def test_doctor_suggests_a_sweeper_if_nobody_sweeps() -> None:
    """If somebody sweeps too slowly, it suggests other settings."""
    told = {"healthy": False, "reason": "late", "backlog": 1}

    (nobody,) = await schema.sweeping(Target("", Answers(told | {"processes": 0})))
    (slow,) = await schema.sweeping(Target("", Answers(told | {"processes": 1})))

    assert "postbus sweep --forever" in nobody.remedy
    assert "postbus sweep set --preset" in slow.remedy
