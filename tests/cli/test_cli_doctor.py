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
from postbus.cli import _checks
from postbus.cli._checks import Finding, Level, Target
from postbus.embedded import EmbeddedPostgres
from support.eventually import eventually
from support.fix_database import Connect

NOWHERE = "postgresql://postgres@127.0.0.1:1/postgres"


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


async def test_a_healthy_database(cli: Cli, roles: Callable[[str], str]) -> None:
    """Every check is made, and all is well."""
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


async def test_what_is_wrong_has_a_remedy(cli: Cli, bus: Bus, conn: Any) -> None:
    """Warnings come with a remedy each, and do not change the exit code."""
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
    assert bad["workers"]["text"] == "none is alive, though messages wait: 1"
    assert bad["topics"]["remedy"] == "postbus topics resume jobs"


async def test_a_server_that_is_away(cli: Cli) -> None:
    """No connection is an error, told as a finding. Exit code 1."""
    cli.env["POSTBUS_DSN"] = NOWHERE

    examined = (await cli.quick("doctor", "--json")).failed(1)

    assert [(one["check"], one["level"]) for one in examined.json["checks"]] == [("connection", "error")]


async def test_a_database_without_the_schema(cli: Cli, empty_dsn: str) -> None:
    """A missing schema is an error whose remedy is to migrate. Exit code 1."""
    cli.env["POSTBUS_DSN"] = empty_dsn

    examined = (await cli.quick("doctor")).failed(1)

    assert ["error", "schema"] in [line.split()[:2] for line in examined.out.splitlines()]
    assert "postbus migrate --dsn DSN" in examined.out


async def test_a_server_with_harmful_settings(folder: Path, cli: Cli) -> None:
    """Settings that risk the data are errors, those that only hurt are warnings."""
    settings = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "max_connections": "15"}
    with EmbeddedPostgres.start(folder, settings=settings) as harmful:
        cli.env["POSTBUS_DSN"] = harmful.dsn()
        found = (await cli.quick("doctor", "--json")).failed(1).json["checks"]

    bad = {one["text"].partition(" is ")[0]: one["level"] for one in found if one["check"] == "settings"}
    assert bad == {"fsync": "error", "full_page_writes": "error", "autovacuum": "warning"}
    assert [one["level"] for one in found if one["check"] == "connections"] == ["warning"]


async def test_roles_of_a_plain_user(dsn: str, cli: Cli, conn: Any, roles: Callable[[str], str]) -> None:
    """It says which roles the user has; without any it warns, and what it cannot see it says."""
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


async def test_an_old_transaction(dsn: str, conn: Any, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is open for long is a warning that names its process."""
    monkeypatch.setattr(_checks, "_LONG", timedelta(0))
    other = await connect()
    await other.execute("begin")

    async def it_is_found() -> None:
        found = await _checks.transactions(Target(dsn, conn))
        mine = [one for one in found if f"pid {other.get_server_pid()} " in one.text]
        assert levels(mine) == [Level.WARNING]
        assert f"pg_terminate_backend({other.get_server_pid()})" in mine[0].remedy
        assert "idle_in_transaction_session_timeout" in mine[0].remedy

    await eventually(it_is_found)


async def test_a_prepared_transaction(dsn: str, connect_alone: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prepared transaction that nobody ends is a warning."""
    monkeypatch.setattr(_checks, "_LONG", timedelta(0))
    conn = await connect_alone()
    name = f"doctor-{conn.get_server_pid()}"
    await conn.execute(f"begin; create table x (); prepare transaction '{name}'")
    try:
        found = await _checks.prepared_transactions(Target(dsn, conn))
    finally:
        await conn.execute(f"rollback prepared '{name}'")

    mine = [one for one in found if name in one.text]
    assert levels(mine) == [Level.WARNING]
    assert f"or: rollback prepared '{name}'" in mine[0].remedy


async def test_a_silent_worker(dsn: str, conn: Any) -> None:
    """A worker without a heartbeat is a warning, beside those that are alive."""
    await conn.execute("select postbus.heartbeat('alive', 'host', 1, '{}'), postbus.heartbeat('gone', 'host', 2, '{}')")
    await conn.execute("update postbus.worker set seen_at = seen_at - interval '2 hours' where name = 'gone'")

    alive, gone = await _checks.workers(Target(dsn, conn))

    assert (alive.level, alive.text) == (Level.OK, "1 alive")
    assert (gone.level, gone.text) == (Level.WARNING, "silent for up to 2h: gone")


async def test_a_silent_worker_that_was_started_again(dsn: str, conn: Any) -> None:
    """Under the same name: then nobody has to look for the one before."""
    await conn.execute(
        "select postbus.heartbeat('me:1a', 'host', 1, '{}'), postbus.heartbeat('me:2b', 'host', 2, '{}')"
    )
    await conn.execute("update postbus.worker set seen_at = seen_at - interval '2 hours' where name = 'me:1a'")

    (found,) = await _checks.workers(Target(dsn, conn))

    assert (found.level, found.text) == (Level.OK, "1 alive")


async def test_an_expired_lease(dsn: str, bus: Bus, conn: Any) -> None:
    """A lease that ended without being returned is a warning: no worker does it."""
    await bus.send("jobs", 1)
    await conn.fetch("select * from postbus.claim('jobs', 'me', 1)")
    await conn.execute("update postbus.lease set ends_at = ends_at - interval '10 minutes'")

    (found,) = await _checks.leases(Target(dsn, conn))

    assert found.level is Level.WARNING
    assert found.text.startswith("1 message has an expired lease, the oldest for 9m")


async def test_dead_letters_are_counted(dsn: str, bus: Bus, conn: Any) -> None:
    """Dead letters are a warning with their number per topic."""
    await bus.send("jobs", 1)
    claim = await (await bus.connect()).claim("jobs", member="me", max_count=1)
    assert claim.token is not None
    await (await bus.connect()).dead_letter(claim.token, [claim.messages[0].id], "broken", None)

    (found,) = await _checks.topics(Target(dsn, conn))

    assert (found.level, found.text) == (Level.WARNING, "1 in jobs")


class Answers:
    """A connection that answers as a server would that cannot be had in a test."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def fetchval(self, *_: Any) -> Any:
        return self._answers.pop(0)

    fetch = fetchrow = execute = fetchval


async def test_a_server_that_is_too_old() -> None:
    """A server below 14 is an error."""
    assert levels(await _checks.version(Target("", Answers("130009", "13.9")))) == [Level.ERROR]


async def test_a_server_without_lz4() -> None:
    """Missing compression is worth knowing, no more."""
    assert levels(await _checks.compression(Target("", Answers(None)))) == [Level.INFO]


async def test_clocks_apart() -> None:
    """A server whose clock differs is a warning."""
    (found,) = await _checks.clock(Target("", Answers(datetime.now(UTC) + timedelta(seconds=90))))

    assert (found.level, "ahead" in found.text) == (Level.WARNING, True)


async def test_a_slot_that_holds_back_the_cleaning() -> None:
    """A replication slot that nobody uses is a warning that names it."""
    (found,) = await _checks.replication_slots(Target("", Answers([{"slot_name": "old", "age": 5000}])))

    assert (found.level, "pg_drop_replication_slot('old')" in found.remedy) == (Level.WARNING, True)


async def test_notifications_that_do_not_arrive(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a pooler that breaks LISTEN there is a warning, and consumers poll."""
    monkeypatch.setattr(_checks, "_HEARD_WITHIN", 0.05)

    (found,) = await _checks.listening(Target(dsn, Answers(None)))

    assert (found.level, "pgbouncer" in found.text) == (Level.WARNING, True)


async def test_role_that_was_made_again_gets_its_rights(dsn: str, conn: Any, roles: Callable[[str], str]) -> None:
    """A missing role is a warning with the statement that makes it; then the remedy is to migrate."""
    seen = f"select has_schema_privilege('{roles('observer')}', 'postbus', 'usage')"
    await conn.execute(f"drop owned by {roles('observer')}; drop role {roles('observer')}")
    (missing,) = await _checks.roles(Target(dsn, conn))
    statement, migrate = missing.remedy.split("; ")
    assert statement == f"create role {roles('observer')} nologin"
    assert "postbus migrate" in migrate

    await conn.execute(statement)
    (without,) = await _checks.roles(Target(dsn, conn))
    assert await migrator.migrate(conn) == [GRANTS]

    assert levels([missing, without]) == [Level.WARNING] * 2
    assert without.remedy == "postbus migrate"
    assert await conn.fetchval(seen)
    assert levels(await _checks.roles(Target(dsn, conn))) == [Level.OK]


async def test_sweeping_that_nobody_does_is_remedied_by_somebody() -> None:
    """Setting the jobs would not help; where somebody sweeps it may."""
    told = {"healthy": False, "reason": "late", "backlog": 1}

    (nobody,) = await _checks.sweeping(Target("", Answers(told | {"processes": 0})))
    (slow,) = await _checks.sweeping(Target("", Answers(told | {"processes": 1})))

    assert "postbus sweep --forever" in nobody.remedy
    assert "postbus sweep set --preset" in slow.remedy
