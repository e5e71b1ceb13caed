"""Connections carry the name of their program."""

from __future__ import annotations

from typing import Any

import pytest

from cli.helpers import Cli
from postbus import Bus
from support.eventually import eventually


async def _names(conn: Any) -> set[str]:
    rows = await conn.fetch(
        "select application_name from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
        "and backend_type = 'client backend'"
    )
    return {row["application_name"] for row in rows}


async def test_bus_connections_are_named_postbus(bus: Bus, conn: Any) -> None:
    """This includes the connections of users' transactions."""
    await bus.send("t", 1)
    async with bus.transaction() as own:
        assert await own.fetchval("show application_name") == "postbus"
        assert await _names(conn) == {"postbus"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [("application_name=mine", "mine"), ("application_name=", ""), ("options=-cwork_mem%3D8MB", "postbus")],
)
async def test_application_name_of_a_dsn_is_kept(dsn: str, conn: Any, given: str, expected: str) -> None:
    """A user who names the program is not overruled."""
    async with Bus.open(f"{dsn}&{given}" if "?" in dsn else f"{dsn}?{given}") as bus:
        await bus.send("t", 1)
        assert await _names(conn) == {expected}


async def test_application_name_of_the_environment_is_kept(
    dsn: str, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGAPPNAME is what other clients of PostgreSQL follow."""
    monkeypatch.setenv("PGAPPNAME", "shop")
    async with Bus.open(dsn) as bus:
        await bus.send("t", 1)
        assert await _names(conn) == {"shop"}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["consume", "t"], "postbus consume"),
        (["serve", "--port", "0"], "postbus serve"),
        (["pop", "t", "--wait", "60s"], "postbus pop"),
    ],
)
async def test_connections_of_a_command_carry_its_name(cli: Cli, conn: Any, command: list[str], name: str) -> None:
    """An operator sees which process a session belongs to."""
    process = await cli.start(*command)

    async def is_connected() -> None:
        assert await _names(conn) == {name}

    await eventually(is_connected, within=30)
    process.kill()
    await process.communicate()
