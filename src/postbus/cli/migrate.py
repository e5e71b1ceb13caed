"""postbus migrate"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from postbus import _migrate
from postbus._connect import connect
from postbus._translate import translated_errors
from postbus.cli._command import Cli
from postbus.cli._render import write_json
from postbus.cli._say import say
from postbus.cli._who import os_actor


async def migrate(
    cli: Cli,
    print_script: Annotated[
        bool, typer.Option("--print", help="Write the whole SQL script to stdout, without connecting.")
    ] = False,
) -> None:
    """Bring the database's schema up to date. Safe to run again, and from many processes at once."""
    if print_script:
        write_json({"script": _migrate.script()}) if cli.as_json else sys.stdout.write(_migrate.script())
        return
    applied, state = await _apply(cli)
    migrations = [name.removeprefix("migration ") for name in applied if name.startswith("migration ")]
    if cli.as_json:
        write_json({"applied": applied, "migrations": migrations, "migration": state.migrations})
        return
    for name in migrations:
        say(f"applied migration {name}")
    if applied:
        say(f"installed the functions of postbus {state.code_version}")
    say(f"the schema is {'now ' if applied else ''}up to date, at migration {state.migrations}")


async def _apply(cli: Cli) -> tuple[list[str], _migrate.SchemaState]:
    bus = cli.open_bus()
    try:
        with translated_errors():
            conn = await connect(bus.dsn)
            try:
                applied = await _migrate.migrate(conn, os_actor())
                return applied, await _migrate.read_state(conn) or _migrate.SchemaState()
            finally:
                await conn.close()
    finally:
        await bus.close()
