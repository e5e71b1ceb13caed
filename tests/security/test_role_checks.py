"""A token can do what its roles and topics allow, and nothing else, whatever the request contains."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from postbus import Bus, Start
from postbus.embedded import EmbeddedPostgres
from postbus.results.access import TokenRole
from security.under_attack import Target, attacked, database, with_bus

pytestmark = pytest.mark.attack("role checks of HTTP")

_ROLES: tuple[TokenRole, ...] = ("producer", "consumer", "observer", "operator", "admin")
_LEASE = "00000000-0000-4000-8000-000000000000"
_LEASED = [{"id": "1", "token": _LEASE}]


async def _prepare(bus: Bus) -> dict[str, str]:
    await bus.admin.create_topic("t", max_attempts=1)
    await bus.admin.create_topic("log", semantics="PUB_SUB")
    await bus.admin.create_topic("others", semantics="PUB_SUB")
    await bus.send("t", "here")
    await bus.send("others", "not yours")
    store = await bus.connect()
    for topic in ("log", "others"):
        await store.subscribe(topic, "g", Start.BEGINNING, "block")
    await bus.admin.create_webhook("hook", "others", "http://127.0.0.1:9/", group="hook", enabled=False)
    tokens: dict[str, str] = {role: (await bus.admin.create_token(role, [role], topics=["*"])).token for role in _ROLES}
    tokens["narrow"] = (await bus.admin.create_token("narrow", list(_ROLES), topics=["t", "log"])).token
    revoked = await bus.admin.create_token("gone", list(_ROLES), topics=["*"])
    await bus.admin.revoke_token(revoked.id)
    return tokens | {"revoked": revoked.token}


@pytest.fixture(scope="module")
def target(server: EmbeddedPostgres) -> Iterator[Target]:
    """Run a server with a token of each role, one of all roles for two topics, and a revoked one."""
    with database(server) as dsn:
        tokens = with_bus(dsn, _prepare)
        with attacked(dsn, "--auth") as target:
            target.tokens |= tokens
            yield target


def _ask(target: Target, method: str, path: str, body: Any = None, **more: Any) -> Any:
    return target.ask(method, path, None if body is None else msgspec.json.encode(body), **more)


def _state(target: Target) -> tuple[Any, ...]:
    """Return the facts that must not change."""
    return tuple(
        target.fetch(sql)
        for sql in (
            "select count(*) from postbus.messages where topic = 't' and state = 'waiting'",
            "select string_agg(concat(name, paused_at, max_attempts), ',' order by name) from postbus.topics",
            "select string_agg(concat(topic, group_name, state), ',' order by topic, group_name) from postbus.groups",
            "select string_agg(name || enabled, ',') from postbus.webhooks",
            "select count(*) from postbus.log",
        )
    )


# A role, and requests it must not make.
BEYOND: list[tuple[str, str, str, Any]] = [
    ("producer", "POST", "/v1/topics/t/pop", {}),
    ("producer", "GET", "/v1/topics/t/messages", None),
    ("producer", "GET", "/v1/topics", None),
    ("producer", "POST", "/v1/transaction", {"ack": _LEASED}),
    ("producer", "POST", "/v1/transaction", {"ack": _LEASED, "push": [{"topic": "t", "messages": [{"text": "x"}]}]}),
    ("producer", "GET", "/v1/topics/t/follow", None),
    ("producer", "PUT", "/v1/topics/log/groups/new", {}),
    ("producer", "POST", "/v1/topics", {"name": "new"}),
    ("consumer", "POST", "/v1/topics/t/messages", {"text": "x"}),
    ("consumer", "POST", "/v1/transaction", {"push": [{"topic": "t", "messages": [{"text": "x"}]}]}),
    ("consumer", "POST", "/v1/topics/log/groups/g/seek", {"start": "FROM_NOW"}),
    ("consumer", "DELETE", "/v1/topics/log/groups/g", None),
    ("consumer", "POST", "/v1/topics/log/groups/g/pause", None),
    ("consumer", "POST", "/v1/topics/log/groups/g/cancel", None),
    ("consumer", "GET", "/v1/dead-letters", None),
    ("consumer", "POST", "/v1/topics/t/purge", {}),
    ("observer", "POST", "/v1/topics/t/messages", {"text": "x"}),
    ("observer", "POST", "/v1/topics/t/pop", {}),
    ("observer", "POST", "/v1/ack", {"messages": _LEASED}),
    ("observer", "POST", "/v1/topics/t/pause", None),
    ("observer", "PATCH", "/v1/topics/t", {"max_attempts": 9}),
    ("observer", "DELETE", "/v1/topics/t?force=true", None),
    ("observer", "POST", "/v1/topics/t/dead-letters/redrive", {}),
    ("observer", "POST", "/v1/topics/t/dead-letters/purge", {}),
    ("observer", "PATCH", "/v1/health/limits", {"lag": 1}),
    ("observer", "GET", "/v1/webhooks", None),
    ("admin", "POST", "/v1/topics/t/messages", {"text": "x"}),
    ("admin", "POST", "/v1/topics/t/pop", {}),
    ("admin", "POST", "/v1/ack", {"messages": _LEASED}),
    ("admin", "POST", "/v1/transaction", {"push": [{"topic": "t", "messages": [{"text": "x"}]}]}),
]


@pytest.mark.parametrize(("role", "method", "path", "body"), BEYOND, ids=lambda one: str(one)[:60])
def test_role_cannot_do_what_other_roles_may(target: Target, role: str, method: str, path: str, body: Any) -> None:
    """The request is refused with 403, and nothing has changed."""
    before = _state(target)
    _ask(target, method, path, body, token=target.tokens[role]).is_refused(403)
    assert _state(target) == before


# All roles, but for the topics t and log only.
ELSEWHERE: list[tuple[str, str, Any]] = [
    ("POST", "/v1/topics/others/messages", {"text": "x"}),
    ("POST", "/v1/topics/others/pop", {"group": "g"}),
    ("GET", "/v1/topics/others", None),
    ("GET", "/v1/topics/others/follow", None),
    ("DELETE", "/v1/topics/others?force=true", None),
    ("DELETE", "/v1/topics/others/groups/g", None),
    ("POST", "/v1/topics", {"name": "new"}),
    ("POST", "/v1/pop", {"group": "g", "pattern": "others"}),
    ("POST", "/v1/pop", {"group": "g", "pattern": "#"}),
    ("POST", "/v1/heartbeat", {"group": "g", "pattern": "others"}),
    ("POST", "/v1/webhooks", {"name": "new", "topic": "others", "group": "x", "url": "http://127.0.0.1:9/"}),
    ("GET", "/v1/webhooks/hook", None),
    ("PATCH", "/v1/webhooks/hook", {"enabled": True}),
    ("DELETE", "/v1/webhooks/hook", None),
    ("POST", "/v1/transaction", {"push": [{"topic": "others", "messages": [{"text": "x"}]}]}),
    (
        "POST",
        "/v1/transaction",
        {"push": [{"topic": "t", "messages": [{"text": "x"}]}, {"topic": "others", "messages": [{"text": "x"}]}]},
    ),
    ("PATCH", "/v1/health/limits?topic=others", {"lag": 1}),
    ("PATCH", "/v1/health/limits", {"lag": 1}),
]


@pytest.mark.parametrize(("method", "path", "body"), ELSEWHERE, ids=lambda one: str(one)[:60])
def test_other_topics_are_closed_to_all_roles(target: Target, method: str, path: str, body: Any) -> None:
    """The topic may be named in the path, in the body, by a pattern, or by something that belongs to it."""
    before = _state(target)
    _ask(target, method, path, body, token=target.tokens["narrow"]).is_refused(403, 404)
    assert _state(target) == before


@pytest.mark.parametrize("path", ["topics", "groups", "dead-letters", "catch-ups", "webhooks", "health"])
def test_lists_do_not_reveal_other_topics(target: Target, path: str) -> None:
    """They contain only what the token may see."""
    told = target.ask("GET", f"/v1/{path}", token=target.tokens["narrow"])
    assert told.status == 200
    assert b"others" not in told.body


def _credentials(target: Target) -> dict[str, tuple[tuple[str, str], ...]]:
    admin, observer, revoked = (target.tokens[name] for name in ("admin", "observer", "revoked"))
    number, _, secret = admin.removeprefix("pbt_").partition("_")
    basic = base64.b64encode(f"admin:{admin}".encode()).decode()
    return {
        "none": (),
        "empty": (("authorization", ""),),
        "scheme only": (("authorization", "Bearer "),),
        "basic": (("authorization", f"Basic {basic}"),),
        "no scheme": (("authorization", admin),),
        "another scheme": (("authorization", f"Token {admin}"),),
        "revoked": (("authorization", f"Bearer {revoked}"),),
        "its id only": (("authorization", f"Bearer pbt_{number}"),),
        "without its end": (("authorization", f"Bearer {admin[:-1]}"),),
        "in capitals": (("authorization", f"Bearer {admin.upper()}"),),
        "another's secret": (("authorization", f"Bearer pbt_{number}_{observer.rpartition('_')[2]}"),),
        "an empty secret": (("authorization", f"Bearer pbt_{number}_"),),
        "SQL for an id": (("authorization", f"Bearer pbt_' or true --_{secret}"),),
        "a wildcard for an id": (("authorization", f"Bearer pbt_%_{secret}"),),
        "a hash for a secret": (("authorization", f"Bearer pbt_{number}_{'0' * 64}"),),
        "a cookie": (("cookie", f"token={admin}; authorization=Bearer {admin}"),),
        "a header of proxies": (("x-forwarded-user", "admin"), ("x-remote-user", "admin"), ("x-auth-roles", "admin")),
        "another header": (("proxy-authorization", f"Bearer {admin}"), ("x-api-key", admin)),
        "this machine's address": (("x-forwarded-for", "127.0.0.1"), ("x-real-ip", "127.0.0.1")),
        "NUL behind it": (("authorization", f"Bearer {number}\xff"),),
    }


@pytest.mark.parametrize(
    "name", _credentials(Target("", 0, dict.fromkeys(("admin", "observer", "revoked"), "pbt_a_b")))
)
def test_bad_credentials_open_nothing(target: Target, name: str) -> None:
    """Strangers get 401, or 400 for a malformed header, wherever they put their credentials."""
    before = _state(target)
    for method, path in (("POST", "/v1/topics/t/pause"), ("GET", "/v1/topics")):
        _ask(target, method, path, headers=_credentials(target)[name]).is_refused(400, 401)
    assert _state(target) == before


@pytest.mark.parametrize(
    "query", ["access_token={}", "token={}", "authorization=Bearer%20{}", "api_key={}", "role=admin", "admin=true"]
)
def test_token_in_the_address_opens_nothing(target: Target, query: str) -> None:
    """Proxies log addresses, so a token does not count there."""
    path = "/v1/topics?" + query.format(target.tokens["admin"])
    target.ask("GET", path).is_refused(401)
    target.ask("POST", "/v1/topics/t/pause?" + query.format(""), token=target.tokens["observer"]).is_refused(403)


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", (("x-http-method-override", "DELETE"),)),
        ("GET", (("x-http-method", "DELETE"),)),
        ("GET", (("x-method-override", "DELETE"),)),
        ("POST", (("x-http-method-override", "DELETE"),)),
        ("HEAD", ()),
        ("OPTIONS", ()),
        ("TRACE", ()),
        ("PURGE", ()),
        ("delete", ()),
    ],
)
def test_method_override_does_not_bypass_the_roles(
    target: Target, method: str, headers: tuple[tuple[str, str], ...]
) -> None:
    """An observer deletes nothing by a method that stands for another one."""
    before = _state(target)
    told = target.send(
        f"{method} /v1/topics/t?force=true HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        f"authorization: Bearer {target.tokens['observer']}\r\n".encode()
        + "".join(f"{name}: {value}\r\n" for name, value in headers).encode()
        + b"\r\n"
    )
    assert b" 200 " not in told[:20]
    assert b"authorization" not in told.lower().partition(b"\r\n\r\n")[2]  # as TRACE would answer
    assert _state(target) == before


@pytest.mark.parametrize("first", ["observer", "admin"])
def test_two_tokens_do_not_add_up(target: Target, first: str) -> None:
    """Two authorization headers never combine the rights of two tokens."""
    second = {"observer": "producer", "admin": "observer"}[first]
    headers = tuple(("authorization", f"Bearer {target.tokens[one]}") for one in (first, second))
    before = _state(target)
    answer = _ask(target, "POST", "/v1/topics/t/pop", {}, headers=headers)
    answer.is_refused(400, 401, 403)
    assert _state(target) == before
