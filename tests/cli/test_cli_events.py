"""postbus events …"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.helpers import Cli
from postbus import Bus
from postbus.options import Semantics
from support.licensing import LicenseExpired, headers

_SHOP = """
import msgspec
from postbus.events import Registry

registry = Registry(title="Shop")

@registry.event("sold", topic="sales", aggregate="article", version={version})
class Sold(msgspec.Struct):
    {fields}
"""
_UPCAST = """
@registry.upcast("sold", from_version=1)
def step(payload):
    return payload
"""


def write(folder: Path, name: str, fields: str = "pieces: int", version: int = 1, more: str = "") -> None:
    (folder / f"{name}.py").write_text(_SHOP.format(fields=fields, version=version) + more)


async def test_events_are_listed(cli: Cli) -> None:
    """The list has the readable versions, as a table and as JSON."""
    write(cli.cwd, "shop", version=2, more=_UPCAST)
    table = (await cli("events", "list", "shop")).done().out.splitlines()
    told = (await cli("events", "list", "shop:registry", "--json")).done().json

    assert [line.split() for line in table] == [
        ["event", "type", "version", "reads", "topic", "aggregate", "payload"],
        ["sold", "2", "1,", "2", "sales", "article", "shop.Sold"],
    ]
    assert told == [
        {"event_type": "sold", "version": 2, "reads": [1, 2], "topic": "sales", "aggregate": "article",
         "payload": "shop.Sold"}
    ]  # fmt: skip


async def test_later_versions_are_checked_against_an_export(cli: Cli) -> None:
    """Each breaking change is a line with exit code 1, and compatible changes end with 0."""
    write(cli.cwd, "shop")
    exported = await cli("events", "export", "shop", "-o", "events.json")
    assert exported.done().err == "wrote 1 event type to events.json\n"
    document = json.loads((cli.cwd / "events.json").read_text())
    assert document == (await cli("events", "export", "shop")).done().json
    write(cli.cwd, "later", "pieces: int; price: int = 0")
    write(cli.cwd, "broken", "pieces: str")
    write(cli.cwd, "newer", "name: str", version=2, more=_UPCAST)

    for name in ("shop", "later", "newer"):
        assert (await cli("events", "check", name, "--against", "events.json")).done().out == ""
    broken = (await cli("events", "check", "broken", "--against", "events.json")).failed(1)
    assert broken.out.splitlines() == [
        "sold: what was emitted before cannot be read: payload.pieces may be integer",
        "sold: programs that know the earlier schema cannot read what is emitted now: payload.pieces may be string",
    ]
    told = (await cli("events", "check", "broken", "--against", "events.json", "--json")).failed(1).json
    assert told == {"ok": False, "event_types": 1, "messages": None, "problems": broken.out.splitlines()}


async def test_asyncapi_is_exported(cli: Cli) -> None:
    """The document has the registry's title."""
    write(cli.cwd, "shop")
    document = (await cli("events", "export", "shop", "--format", "asyncapi")).done().json

    assert (document["asyncapi"], document["info"]["title"], [*document["channels"]]) == ("3.0.0", "Shop", ["sales"])


async def test_registry_is_checked_in_itself(cli: Cli) -> None:
    """An upcaster that leads nowhere is a problem."""
    write(cli.cwd, "shop", more=_UPCAST)
    result = (await cli("events", "check", "shop")).failed(1)

    assert result.out == "sold: the upcaster from version 1 does not lead to version 1\n"


@pytest.mark.parametrize("semantics", ["QUEUE", "PUB_SUB"])
async def test_stored_messages_are_checked(cli: Cli, bus: Bus, conn: Any, semantics: Semantics) -> None:
    """Messages that a handler would give up are listed, among a given number of the newest."""
    empty = (await cli.quick("events", "check", "support.licensing", "--stored", "--json")).done().json
    assert (empty["ok"], empty["messages"]) == (True, 0)
    await bus.admin.create_topic("licenses", semantics=semantics)
    bad = await bus.send("licenses", {"license_id": "x"}, headers=headers("license_expired", 1))
    async with bus.transaction() as tx:
        for n in range(3):
            await bus.emit(tx, LicenseExpired(n), aggregate_id=n)

    found = (await cli.quick("events", "check", "support.licensing", "--stored")).failed(1)
    assert found.out == (
        f"message {bad} of licenses: the payload of event 'license_expired' is invalid: "
        "Expected `int`, got `str` - at `$.license_id` (publish what its class declares; bus.emit() checks that)\n"
    )
    assert found.err == "3 event types, 4 messages: 1 problem\n"
    newest = (await cli.quick("events", "check", "support.licensing", "--stored", "--limit", "3", "--json")).done().json
    assert newest == {"ok": True, "event_types": 3, "messages": 3, "problems": []}


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("list", "nowhere"), 2, "there is no module 'nowhere'"),
        (("list", "shop:Sold"), 2, "shop:Sold is not a Registry but of type StructMeta"),
        (("list", "shop:other"), 2, "name the registry: shop:registry"),
        (("list", "shop.py"), 2, "name a module: postbus events list shop:registry"),
        (("check", "shop", "--against", "missing.json"), 2, "cannot read missing.json"),
        (("check", "shop", "--against", "shop.py"), 2, "shop.py is not JSON"),
        (("check", "shop", "--against", "empty.json"), 4, "this is not a document of events"),
        (("export", "shop", "-o", "missing/events.json"), 1, "cannot write missing/events.json"),
        (("export", "shop", "--format", "xml"), 2, "xml"),
    ],
)
async def test_event_mistakes_are_reported(cli: Cli, args: tuple[str, ...], code: int, told: str) -> None:
    """They are reported in plain words, with the exit code of their kind."""
    write(cli.cwd, "shop")
    (cli.cwd / "empty.json").write_text("{}")

    assert told in (await cli("events", *args)).failed(code).err
