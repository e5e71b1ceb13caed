"""postbus audit"""

from __future__ import annotations

import asyncio
import getpass
import json
import socket
from typing import Any

import pytest

from cli.helpers import Cli
from postbus import Bus
from postbus.cli import _who
from postbus.cli._command import Cli as Options
from postbus.cli.audit import _change, _follow
from postbus.results import AuditEntry


async def test_entry_of_a_command_shows_the_account(cli: Cli, bus: Bus, conn: Any) -> None:
    """It shows the database user, the operating system's account and host, the action and the change."""
    (await cli.quick("topics", "create", "orders", "--max-attempts", "7")).done()
    (await cli.quick("topics", "set", "orders", "--max-attempts", "3")).done()
    [created, changed] = (await cli.quick("audit", "--topic", "orders", "--json")).done().json
    assert created["action"] == "topic.create"
    assert (changed["action"], changed["before"], changed["after"]) == (
        "topic.set", {"max_attempts": 7}, {"max_attempts": 3},
    )  # fmt: skip
    assert changed["actor"].startswith(f"os:{getpass.getuser()}@{socket.gethostname()}")
    assert changed["login"] == await conn.fetchval("select session_user")
    text = (await cli.quick("audit", "--topic", "orders")).done().out
    assert "max_attempts 7 -> 3" in text
    assert changed["actor"] in text


async def test_audit_can_be_filtered(cli: Cli, bus: Bus) -> None:
    """The filters are actor, action, group, time and number."""
    for who in ("alice", "bob"):
        await bus.admin.acting_as(who).create_topic(f"of-{who}", semantics="PUB_SUB")
        await bus.admin.acting_as(who).subscribe_group("mail", f"of-{who}")

    async def shown(*options: str) -> list[str]:
        found = (await cli.quick("audit", "--json", *options)).done().json
        return [f"{one['actor']} {one['action']}" for one in found if one["actor"]]

    assert await shown("--actor", "Alice") == ["alice topic.create", "alice group.subscribe"]
    assert await shown("--action", "group") == ["alice group.subscribe", "bob group.subscribe"]
    assert await shown("--action", "topic.create", "--limit", "1") == ["bob topic.create"]
    assert await shown("--group", "mail", "--topic", "of-bob") == ["bob group.subscribe"]
    assert await shown("--since", "1h", "--until", "30m") == []
    assert len(await shown("--since", "1h")) == 4
    assert "no entries" in (await cli.quick("audit", "--topic", "other")).done().err
    ids = [one["id"] for one in (await cli.quick("audit", "--json")).done().json]
    assert f"--before-id {ids[-2]}" in (await cli.quick("audit", "--limit", "2")).done().err
    older = (await cli.quick("audit", "--json", "--before-id", str(ids[-2]))).done().json
    assert [one["id"] for one in older] == ids[:-2]


async def test_control_characters_do_not_reach_the_terminal(cli: Cli, conn: Any) -> None:
    """An actor written by SQL, and options with line breaks, are shown on one line."""
    await conn.execute("select set_config('postbus.actor', $1, false)", "\x1b[2Jalice\nbob")
    await conn.execute("select postbus.create_token('t', 'h', 'n' || U&'\\202e', array['admin'])")
    out = (await cli.quick("audit", "--action", "token")).done().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert len(out.splitlines()) == 2


async def test_following_shows_each_entry_once(
    cli: Cli, bus: Bus, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes an entry that commits after later ones."""
    monkeypatch.setattr("postbus.cli.audit._EVERY", 0.01)
    await bus.admin.create_topic("before")
    known = await bus.admin.audit(limit=1)
    following = asyncio.create_task(_follow(Options(as_json=True), bus.admin, {}, known))
    topics: list[str] = []

    async def has(*names: str) -> None:
        async with asyncio.timeout(10):
            while len(topics) < len(names):
                topics.extend(json.loads(line)["topic"] for line in capsys.readouterr().out.splitlines())
                await asyncio.sleep(0.01)
        assert topics == list(names)

    async with bus.transaction() as conn:
        await conn.execute("select postbus.create_topic('late')")
        await bus.admin.create_topic("early")
        await has("before", "early")
    await has("before", "early", "late")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize(("entry", "text"), [
    ({"given": {"force": True}}, "force true"),
    ({"before": {"state": "ACTIVE", "lag": 3}, "after": {"state": "PAUSED"}}, "lag was 3, state ACTIVE -> PAUSED"),
    ({"after": {"roles": ["admin"]}}, 'roles ["admin"]'),
])  # fmt: skip
def test_changes_are_shown_on_one_line(entry: dict[str, Any], text: str) -> None:
    """A changed value is shown with its old and its new state."""
    nothing = dict.fromkeys(AuditEntry.__struct_fields__)
    assert _change(AuditEntry(**{**nothing, **entry})) == text


def test_login_name_is_shown_beside_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """After sudo they differ; unprintable characters are replaced."""
    monkeypatch.setattr("os.getlogin", lambda: "ali\nce")
    assert _who.os_actor().endswith(" login ali?ce")
    monkeypatch.setattr("os.getlogin", getpass.getuser)
    assert " login " not in _who.os_actor()
