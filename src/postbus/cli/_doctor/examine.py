"""Running all checks."""

from __future__ import annotations

import asyncpg

from postbus._db.commit import begin, is_lost, roll_back
from postbus._db.error_map import DRIVER_ERRORS, translate
from postbus.cli._doctor.finding import Check, Finding, Level, Target
from postbus.cli._doctor.schema import SCHEMA_CHECKS, schema
from postbus.cli._doctor.server import SERVER_CHECKS, listening


async def examine(target: Target) -> list[Finding]:
    """All checks. One that the user may not make is a finding too."""
    findings = [finding for check in SERVER_CHECKS for finding in await _run(check, target)]
    of_the_schema = await _run(schema, target)
    findings += of_the_schema
    if all(finding.level is not Level.ERROR for finding in of_the_schema):
        findings += [finding for check in SCHEMA_CHECKS for finding in await _run(check, target)]
    return findings


async def _in_transaction(check: Check, target: Target) -> list[Finding]:
    """Made in a transaction, whose search path is ours also behind a pooler. It changes nothing."""
    await begin(target.conn)
    try:
        return await check(target)
    finally:
        if not is_lost(target.conn):
            await roll_back(target.conn)


async def _run(check: Check, target: Target) -> list[Finding]:
    name = check.__name__.replace("_", " ")
    try:
        if check is listening:  # of which only a commit tells
            return await check(target)
        return await _in_transaction(check, target)
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
