"""postbus doctor"""

from __future__ import annotations

import time

from rich.table import Table
from rich.text import Text

from postbus._db.connect import connect
from postbus._db.error_map import translated_errors
from postbus.bus import Bus
from postbus.cli._command import Cli
from postbus.cli._doctor.examine import examine
from postbus.cli._doctor.finding import Finding, Level, Target
from postbus.cli._exits import FAILED, OK
from postbus.cli._render import printable, write_json, write_lines
from postbus.errors import PostbusError

_STYLES = {Level.OK: "green", Level.INFO: "cyan", Level.WARNING: "yellow", Level.ERROR: "bold red"}


async def doctor(cli: Cli) -> int:
    """Check the database and everything in it. The exit code is 0 unless a check finds an error."""
    findings = await _findings(cli)
    is_well = all(finding.level is not Level.ERROR for finding in findings)
    if cli.as_json:
        listed = [vars(finding) for finding in findings]
        write_json({"ok": is_well, "checks": listed})
    else:
        _write(findings)
    return OK if is_well else FAILED


async def _findings(cli: Cli) -> list[Finding]:
    try:
        bus = cli.open_bus()
    except PostbusError as error:
        return [_unreachable(error)]
    try:
        if cli.server_dsn is None:
            await bus.connect()  # this migrates an embedded server, which nobody else does
        return await _examine(bus)
    except PostbusError as error:
        return [_unreachable(error)]
    finally:
        await bus.close()


async def _examine(bus: Bus) -> list[Finding]:
    began = time.monotonic()
    with translated_errors():
        conn = await connect(bus.dsn)
    took = (time.monotonic() - began) * 1000
    try:
        where = await conn.fetchval(
            "select pg_catalog.format('database %I as %I', pg_catalog.current_database(), current_user)"
        )
        return [
            Finding("connection", Level.OK, f"{where}, in {took:.0f} ms"),
            *await examine(Target(bus.dsn, conn)),
        ]
    finally:
        conn.terminate()


def _unreachable(error: PostbusError) -> Finding:
    return Finding("connection", Level.ERROR, error.message, error.remedy)


def _write(findings: list[Finding]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark = Text(finding.level.value, style=_STYLES[finding.level])
        table.add_row(mark, finding.check, printable(finding.text))
        if finding.remedy:
            table.add_row("", "", f"→ {printable(finding.remedy)}")
    write_lines(table)
