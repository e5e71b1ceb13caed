"""postbus migrate"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from postbus._db import migrator
from postbus._db.commit import committed
from postbus._db.connect import connect
from postbus._db.error_map import translated_errors
from postbus._db.roles import GRANTS, RoleReport, report_roles
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
        write_json({"script": migrator.script()}) if cli.as_json else sys.stdout.write(migrator.script())
        return
    applied, state, told = await _apply(cli)
    migrations = [name.removeprefix("migration ") for name in applied if name.startswith("migration ")]
    if cli.as_json:
        notes = [vars(note) for note in told.notes]
        roles = [vars(role) for role in told.roles]
        write_json(
            {
                "applied": applied, "migrations": migrations, "migration": state.migrations,
                "roles": roles, "notes": notes,
            }
        )  # fmt: skip
        return
    for name in migrations:
        say(f"applied migration {name}")
    if applied == [GRANTS]:
        say("gave the roles their rights")
    elif applied:
        say(f"installed the functions of postbus {state.code_version}")
    say(f"the schema is {'now ' if applied else ''}up to date, at migration {state.migrations}")
    _tell(told)


def _tell(told: RoleReport) -> None:
    rightful = [role.name for role in told.roles if role.has_rights]
    if rightful:
        say(f"the roles of this database: {', '.join(rightful)}")
    for note in told.notes:
        say(f"{note.text}:")
        say(f"  {note.statement};")
    if any(not role.is_there for role in told.roles):
        say("create the missing roles, and migrate again to give them their rights")


async def _apply(cli: Cli) -> tuple[list[str], migrator.SchemaState, RoleReport]:
    bus = cli.open_bus()
    try:
        with translated_errors():
            conn = await connect(bus.dsn)
            try:
                applied, taken = await migrator.migrate_reporting(conn, os_actor())
                async with committed(conn, repeatable=True):
                    state = await migrator.read_state(conn) or migrator.SchemaState()
                    return applied, state, await report_roles(conn, taken)
            finally:
                await conn.close()
    finally:
        await bus.close()
