"""Access over HTTP: tokens, roles, patterns of topics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from litestar.handlers import HTTPRouteHandler

from http_api.serving import client, new_token, problem, serving
from postbus import Bus, InvalidOption, TokenNotFound
from postbus.server.app import PARTS
from postbus.server.callers import Authenticator, matches
from postbus.server.settings import ServerSettings

ROLES = ("producer", "consumer", "observer", "operator", "admin")
P, C, A, CA = {"producer"}, {"consumer"}, {"admin"}, {"consumer", "admin"}
OA, OP = {"observer", "operator", "admin"}, {"operator", "admin"}
EVERYBODY: set[str] = set()
_ONE = [{"id": "1", "token": "00000000-0000-0000-0000-000000000000"}]
_T, _G = "/v1/topics/t", "/v1/topics/t/groups/g"

# Each route: its operation, a request for it, and the roles that may send that. No roles: everybody may.
TABLE: dict[str, tuple[str, str, Any, set[str]]] = {
    "push": ("POST", f"{_T}/messages", {"payload": 1}, P),
    "browse_messages": ("GET", f"{_T}/messages", None, OA),
    "show_message": ("GET", f"{_T}/messages/1", None, OA),
    "follow_topic": ("GET", "/v1/topics/none/follow", None, OA),
    "pop": ("POST", f"{_T}/pop", {}, C),
    "pop_scope": ("POST", "/v1/pop", {"group": "g", "pattern": "none.*"}, C),
    "heartbeat": ("POST", f"{_T}/groups/g/heartbeat", None, C),
    "heartbeat_scope": ("POST", "/v1/heartbeat", {"group": "g", "pattern": "none.*"}, C),
    "ack": ("POST", "/v1/ack", {"messages": _ONE}, C),
    "retry": ("POST", "/v1/retry", {"messages": _ONE}, C),
    "dead_letter": ("POST", "/v1/dead-letter", {"messages": _ONE, "reason": "no"}, C),
    "release": ("POST", "/v1/release", {"messages": _ONE}, C),
    "extend": ("POST", "/v1/extend", {"messages": _ONE, "lease": 5}, C),
    "transaction": ("POST", "/v1/transaction", {"push": [{"topic": "t", "messages": [{"text": "x"}]}]}, P),
    "list_topics": ("GET", "/v1/topics", None, OA),
    "create_topic": ("POST", "/v1/topics", {"name": "t"}, A),
    "show_topic": ("GET", _T, None, OA),
    "set_topic": ("PATCH", _T, {"max_attempts": 3}, A),
    "delete_topic": ("DELETE", _T, None, A),
    "pause_topic": ("POST", f"{_T}/pause", None, OP),
    "resume_topic": ("POST", f"{_T}/resume", None, OP),
    "purge_topic": ("POST", f"{_T}/purge", {}, A),
    "list_all_groups": ("GET", "/v1/groups", None, OA),
    "list_groups": ("GET", f"{_T}/groups", None, OA),
    "subscribe_group": ("PUT", _G, {}, CA),
    "show_group": ("GET", _G, None, OA),
    "group_metrics": ("GET", f"{_G}/metrics", None, OA),
    "remove_group": ("DELETE", _G, None, A),
    "pause_group": ("POST", f"{_G}/pause", None, OP),
    "resume_group": ("POST", f"{_G}/resume", None, OP),
    "cancel_group": ("POST", f"{_G}/cancel", None, A),
    "resurrect_group": ("POST", f"{_G}/resurrect", None, OP),
    "seek_group": ("POST", f"{_G}/seek", {}, OP),
    "list_catch_ups": ("GET", "/v1/catch-ups", None, OA),
    "group_catch_ups": ("GET", f"{_G}/catch-ups", None, OA),
    "cancel_catch_up": ("POST", f"{_G}/catch-ups/cancel", None, A),
    "resume_catch_up": ("POST", f"{_G}/catch-ups/resume", None, OP),
    "list_all_dead_letters": ("GET", "/v1/dead-letters", None, OA),
    "list_dead_letters": ("GET", f"{_T}/dead-letters", None, OA),
    "show_dead_letter": ("GET", f"{_T}/dead-letters/1", None, OA),
    "redrive_dead_letters": ("POST", f"{_T}/dead-letters/redrive", {}, OP),
    "purge_dead_letters": ("POST", f"{_T}/dead-letters/purge", {}, A),
    "list_webhooks": ("GET", "/v1/webhooks", None, A),
    "create_webhook": ("POST", "/v1/webhooks", {"name": "w", "topic": "t", "url": "http://127.0.0.1:9/"}, A),
    "show_webhook": ("GET", "/v1/webhooks/none", None, A),
    "set_webhook": ("PATCH", "/v1/webhooks/none", {"enabled": False}, A),
    "delete_webhook": ("DELETE", "/v1/webhooks/none", None, A),
    "list_tokens": ("GET", "/v1/tokens", None, A),
    "list_audit": ("GET", "/v1/audit", None, A),
    "show_health": ("GET", "/v1/health", None, OA),
    "show_health_limits": ("GET", "/v1/health/limits", None, OA),
    "set_health_limits": ("PATCH", "/v1/health/limits", {"lag": 1}, A),
    "welcome": ("GET", "/", None, EVERYBODY),
    "livez": ("GET", "/livez", None, EVERYBODY),
    "readyz": ("GET", "/readyz", None, EVERYBODY),
}


def test_table_has_every_route() -> None:
    """A new route has to be entered here with its roles."""
    handlers: list[HTTPRouteHandler] = [route for part in PARTS for route in part.ROUTES]
    assert sorted(str(one.operation_id) for one in handlers) == sorted(TABLE)


@pytest.fixture
async def guarded(bus: Bus) -> AsyncIterator[str]:
    """Run a server with authentication."""
    async with serving(bus, auth=True) as url:
        yield url


async def test_every_route_admits_its_roles(guarded: str, bus: Bus) -> None:
    """Each role is admitted where the table says so; tests/security shows that it is refused elsewhere."""
    async with client(guarded) as http:
        for method, path, _, allowed in TABLE.values():
            if not allowed:
                assert (await http.request(method, path)).status_code == 200
    for role in ROLES:
        async with client(guarded, await new_token(bus, role)) as http:
            for name, (method, path, body, allowed) in TABLE.items():
                if role in allowed:
                    answer = await http.request(method, path, json=body)
                    assert answer.status_code not in (401, 403), (name, role, answer.text)


async def test_token_with_several_roles_has_the_rights_of_each(guarded: str, bus: Bus) -> None:
    """Roles add up: a transaction that acknowledges and pushes needs both."""
    ack = {"ack": _ONE, "push": [{"topic": "t", "messages": [{"text": "x"}]}]}
    async with client(guarded, await new_token(bus, "producer")) as http:
        problem(await http.post("/v1/transaction", json=ack), 403, "PB441")
    async with client(guarded, await new_token(bus, "consumer")) as http:
        problem(await http.post("/v1/transaction", json=ack), 403, "PB441")
    async with client(guarded, await new_token(bus, "producer", "consumer")) as http:
        problem(await http.post("/v1/transaction", json=ack), 409, "PB423")


async def test_topics_beyond_a_tokens_patterns_are_closed(guarded: str, bus: Bus) -> None:
    """A token for orders.* neither reaches other topics, in paths or bodies, nor sees them in lists."""
    for topic in ("orders.new", "secret"):
        await bus.admin.create_topic(topic, semantics="PUB_SUB")
        await bus.admin.create_topic(f"{topic}.q", max_attempts=1)
        await (await bus.connect()).subscribe(topic, "g", _now(), "block")
        await bus.send(f"{topic}.q", 1)
        async with bus.pop(f"{topic}.q") as popped:
            await popped.dead_letter("no")
        await bus.admin.create_webhook(topic, topic, "http://127.0.0.1:9/", group="hook", enabled=False)
    token = await new_token(bus, *ROLES, topics=("orders.*",))
    async with client(guarded, token) as http:
        for name, (method, path, body, allowed) in TABLE.items():
            if allowed and "/topics/t" in path:
                answer = await http.request(method, path.replace("/topics/t", "/topics/secret"), json=body)
                assert answer.status_code == 403, (name, answer.text)
        for method, path, body in (
            ("POST", "/v1/topics", {"name": "secret.2"}),
            ("POST", "/v1/webhooks", {"name": "w", "topic": "secret", "group": "x", "url": "http://127.0.0.1:9/"}),
            ("GET", "/v1/tokens", None),
            ("POST", "/v1/pop", {"group": "g", "pattern": "orders.*"}),
            ("POST", "/v1/transaction", {"push": [{"topic": "secret.q", "messages": [{"text": "x"}]}]}),
        ):
            problem(await http.request(method, path, json=body), 403, "PB441")
        for method, body in (("GET", None), ("PATCH", {"enabled": True}), ("DELETE", None)):
            problem(await http.request(method, "/v1/webhooks/secret", json=body), 404, "PB445")
        for path in ("/v1/topics", "/v1/groups", "/v1/dead-letters", "/v1/webhooks", "/v1/catch-ups"):
            text = (await http.get(path)).text
            assert "secret" not in text, path
            assert "orders.new" in text or path == "/v1/catch-ups", path


def _now() -> Any:
    from postbus import Start

    return Start.NOW


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("orders", "orders", True), ("orders", "orders.new", False), ("orders.*", "orders.", True),
        ("orders.*", "orders.new.eu", True), ("orders.*", "orders", False), ("*", "anything", True),
        ("*.eu", "orders.eu", True), ("*.eu", "orders.us", False), ("a*b*c", "a1b2c", True), ("a*b*c", "acb", False),
        ("a*a", "a", False), ("a*a", "aa", True), ("*x*", "x", True), ("*x*x*", "x", False), ("a*b", "ab\nb", True),
    ],
)  # fmt: skip
def test_topic_pattern_matches_names(pattern: str, name: str, fits: bool) -> None:
    """A star stands for any text, also the empty one; every other character is literal."""
    assert matches(pattern, name) is fits


async def test_revoked_token_is_refused(guarded: str, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused as soon as the server no longer remembers it."""
    monkeypatch.setattr("postbus.server.callers._REMEMBERED", 0.0)
    made = await bus.admin.create_token("x", ["observer"])
    async with client(guarded, made.token) as http:
        assert (await http.get("/v1/topics")).status_code == 200
        await bus.admin.revoke_token(made.id)
        problem(await http.get("/v1/topics"), 401, "PB440")
    with pytest.raises(TokenNotFound):
        await bus.admin.revoke_token("none")


async def test_expired_token_is_refused(guarded: str, bus: Bus, conn: Any) -> None:
    """The database's clock decides, and the server remembers a token no longer than it lives."""
    made = await bus.admin.create_token("x", ["observer"], expires_in="1h")
    await conn.execute("update postbus.token set expires_at = clock_timestamp()")
    async with client(guarded, made.token) as http:
        answer = await http.get("/v1/topics")
    problem(answer, 401, "PB440")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert (await bus.admin.tokens())[0].state == "expired"


@pytest.mark.parametrize(
    "header", ["", "Basic eDp5", "Bearer", "Bearer x", "Bearer pbt_", "Bearer pbt_a_b", "Bearer \xe9"]
)
async def test_bad_token_is_refused(guarded: str, header: str) -> None:
    """Whatever a stranger sends, the answer is 401."""
    async with client(guarded) as http:
        answer = await http.get("/v1/topics", headers=[(b"authorization", header.encode())])
    problem(answer, 401, "PB440")


async def test_only_a_hash_of_a_token_is_stored(bus: Bus, conn: Any) -> None:
    """A reader of the database cannot call the server."""
    made = await bus.admin.create_token("x", ["admin"])
    stored = json.dumps([str(dict(row)) for row in await conn.fetch("select * from postbus.token")])
    assert made.token.rpartition("_")[2] not in stored
    assert made.id in stored


@pytest.mark.parametrize(
    "bad", [{"roles": []}, {"roles": ["king"]}, {"topics": []}, {"topics": ["a b"]}, {"name": ""}, {"expires_in": 0}]
)
async def test_token_with_bad_options_is_refused(bus: Bus, bad: dict[str, Any]) -> None:
    """Roles, patterns, names and lifetimes are checked when a token is made."""
    given: dict[str, Any] = {"name": "x", "roles": ["admin"], **bad}
    with pytest.raises(InvalidOption):
        await bus.admin.create_token(given.pop("name"), given.pop("roles"), **given)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_public_address_needs_authentication(host: str) -> None:
    """Without tokens only this machine is served."""
    with pytest.raises(InvalidOption, match="there is no authentication"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, auth=True).host == host


async def test_open_server_refuses_web_pages(http: httpx.AsyncClient) -> None:
    """Neither a foreign name for this machine nor a page of another origin is accepted."""
    problem(await http.get("/v1/topics", headers={"host": "evil.example.org"}), 403, "PB441")
    problem(await http.post("/v1/topics/t/pause", headers={"origin": "https://evil.example.org"}), 403, "PB441")
    own = str(http.base_url).rstrip("/")
    assert (await http.get("/v1/topics", headers={"origin": own})).status_code == 200


async def test_number_of_remembered_tokens_is_bounded(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server forgets the oldest ones."""
    monkeypatch.setattr("postbus.server.callers._MOST_REMEMBERED", 2)
    authenticator = Authenticator(bus.connect, is_open=False, verifier=None)
    for _ in range(4):
        await authenticator.caller(f"Bearer {await new_token(bus, 'admin')}")
    assert len(authenticator._known) <= 2
