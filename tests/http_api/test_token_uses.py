"""Tokens show who made them, and when they were last used."""

from __future__ import annotations

from typing import Any

import pytest

from cli.conftest import cli, end_what_was_started
from cli.helpers import Cli
from http_api.serving import client, new_token, serving
from postbus import Bus, DatabaseUnavailable
from postbus.server.callers import Authenticator
from postbus.server.token_uses import TokenUses

__all__ = ["cli", "end_what_was_started"]


async def test_token_shows_its_maker_and_its_last_use(bus: Bus, cli: Cli, conn: Any) -> None:
    """This holds over HTTP and on the command line; an unused token says so."""
    used, unused = await new_token(bus, "admin"), await new_token(bus, "observer", groups=["audit"], payloads=False)
    async with serving(bus, auth=True) as url, client(url, used) as http:
        assert (await http.get("/v1/topics")).status_code == 200
    async with serving(bus, auth=True) as url, client(url, used) as http:
        told = {one["id"]: one for one in (await http.get("/v1/tokens")).json()["tokens"]}

    first, second = (told[token.split("_")[1]] for token in (used, unused))
    user = await conn.fetchval("select session_user::text")
    assert first["last_used_at"] >= first["created_at"]
    assert (first["created_by"], first["groups"], first["payloads"]) == (user, ["*"], True)
    assert (second["last_used_at"], second["groups"], second["payloads"]) == (None, ["audit"], False)
    assert "token" not in first
    assert "hash" not in first
    listed = (await cli.quick("tokens", "list")).done().out
    assert "never" in listed
    assert "observer without payloads" in listed.replace("\n", " ") or "without" in listed
    [one] = [one for one in (await cli.quick("tokens", "list", "--json")).json if one["id"] == first["id"]]
    assert one["last_used_at"]
    made = (
        await cli.quick("tokens", "create", "x", "--role", "operator", "--group", "a*", "--no-payloads", "--json")
    ).json
    [one] = [one for one in await bus.admin.tokens() if one.id == made["id"]]
    assert (one.roles, one.groups, one.payloads) == (["operator"], ["a*"], False)
    (await cli.quick("tokens", "create", "x", "--role", "admin", "--no-payloads")).failed(4)


async def test_token_shows_for_whom_it_was_made(bus: Bus, dsn: str, conn: Any) -> None:
    """As in the audit log, it is the login, and beside it the actor."""
    async with Bus.open(dsn, actor="ada") as other:
        await other.admin.create_token("x", ["observer"])
    user = await conn.fetchval("select session_user::text")
    assert [one.created_by for one in await bus.admin.tokens()] == [f"{user} for ada"]


async def test_use_is_written_once_a_minute_at_most(bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate does not depend on the number of lookups or processes."""
    monkeypatch.setattr("postbus.server.callers._REMEMBERED", 0.0)
    writes = "select xmin::text, last_used_at from postbus.token"
    one, other = (Authenticator(bus.connect, is_open=False, verifier=None) for _ in range(2))
    header = f"Bearer {await new_token(bus, 'admin')}"
    for _ in range(3):
        await one.caller(header)
    assert len(one.uses._waiting) == 1
    await one.uses.write()
    first = await conn.fetchrow(writes)
    for authenticator in (one, other):
        await authenticator.caller(header)
        await authenticator.uses.write()
    assert one.uses._waiting == {}
    assert await conn.fetchrow(writes) == first
    await conn.execute("update postbus.token set last_used_at = last_used_at - interval '1 minute'")
    one.uses._noted = {token: at - 60.0 for token, at in one.uses._noted.items()}
    await one.caller(header)
    await one.uses.write()
    assert await conn.fetchval("select last_used_at from postbus.token") > first["last_used_at"]


async def test_uses_wait_while_the_database_is_unavailable(bus: Bus, conn: Any) -> None:
    """They are written when it is back, and no request waits for that."""
    token = await new_token(bus, "admin")
    is_away = True

    async def store() -> Any:
        if is_away:
            raise DatabaseUnavailable("away", remedy="wait")
        return await bus.connect()

    authenticator = Authenticator(bus.connect, is_open=False, verifier=None)
    uses = authenticator.uses = TokenUses(store)
    await authenticator.caller(f"Bearer {token}")
    with pytest.raises(DatabaseUnavailable):
        await uses.write()
    is_away = False
    await uses.write()
    assert await conn.fetchval("select last_used_at is not null from postbus.token")


async def test_number_of_remembered_uses_is_bounded(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A use beyond the bound is recorded later."""
    monkeypatch.setattr("postbus.server.token_uses._MOST", 2)
    uses = TokenUses(bus.connect)
    for n in range(5):
        uses.note(f"t{n}", b"x")
    assert (len(uses._noted), len(uses._waiting)) == (2, 2)
    uses._noted = {token: at - 60.0 for token, at in uses._noted.items()}
    uses.note("t4", b"x")
    assert list(uses._noted) == ["t4"]
