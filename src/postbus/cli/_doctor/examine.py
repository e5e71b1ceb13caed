"""Running all checks."""

from __future__ import annotations

import asyncpg

from postbus._db.commit import begin, is_lost, roll_back
from postbus._db.error_map import DRIVER_ERRORS, translate
from postbus.cli._doctor.finding import Check, Finding, Level, Target
from postbus.cli._doctor.schema import SCHEMA_CHECKS, schema
from postbus.cli._doctor.server import SERVER_CHECKS, listening


async def examine(target: Target) -> list[Finding]:
    """Run all checks. One that the user may not make is a finding, too."""
    findings = [finding for check in SERVER_CHECKS for finding in await _run(check, target)]
    of_the_schema = await _run(schema, target)
    findings += of_the_schema
    if all(finding.level is not Level.ERROR for finding in of_the_schema):
        findings += [finding for check in SCHEMA_CHECKS for finding in await _run(check, target)]
    return findings


async def _in_transaction(check: Check, target: Target) -> list[Finding]:
    """Check in a transaction, whose search path is ours even behind a pooler. It changes nothing."""
    await begin(target.conn)
    try:
        return await check(target)
    finally:
        if not is_lost(target.conn):
            await roll_back(target.conn)


async def _run(check: Check, target: Target) -> list[Finding]:
    name = check.__name__.replace("_", " ")
    try:
        if check is listening:  # only a commit sends notifications
            return await check(target)
        return await _in_transaction(check, target)
    except asyncpg.InsufficientPrivilegeError as error:
        return [
            Finding(
                name,
                Level.WARNING,
                f"this user may not check it: {error}",
                "grant this user the role observer of this database, postbus_observer_DATABASE",
            )
        ]
    except DRIVER_ERRORS as error:
        told = translate(error)
        return [Finding(name, Level.ERROR, told.message if told else str(error), told.remedy if told else "")]
