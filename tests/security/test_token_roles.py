"""Attacks on the roles of tokens: every route, with every role that must not use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from http_api.serving import problem
from http_api.test_auth import ROLES, TABLE
from postbus import Start
from postbus.embedded import EmbeddedPostgres
from postbus.server.callers import Caller
from postbus.server.jwt import caller_of
from postbus.server.settings import JwtSettings
from security.standing import Standing, standing

pytestmark = pytest.mark.attack("roles of tokens")

_GUARDED = {name: row for name, row in TABLE.items() if row[3]}
_REFUSED = [(name, role) for name, row in _GUARDED.items() for role in ROLES if role not in row[3]]
_DELETES = [
    ("DELETE", "/v1/topics/jobs", None),
    ("DELETE", "/v1/topics/jobs?force=true", None),
    ("POST", "/v1/topics/jobs/purge", {}),
    ("POST", "/v1/topics/jobs/purge", {"dry_run": True}),
    ("PATCH", "/v1/topics/events", {"retention": 1}),
    ("PATCH", "/v1/topics/events", {"max_retention": 1}),
    ("DELETE", "/v1/topics/events/groups/mail", None),
    ("POST", "/v1/topics/events/groups/mail/cancel", None),
    ("POST", "/v1/topics/events/groups/mail/catch-ups/cancel", None),
    ("POST", "/v1/topics/events/groups/mail/resurrect?catch_up=false", None),
    ("POST", "/v1/topics/jobs/dead-letters/purge", {}),
    ("POST", "/v1/topics/events/dead-letters/purge", {"group": "mail"}),
    ("POST", "/v1/webhooks", {"name": "w", "topic": "jobs", "url": "http://127.0.0.1:9/"}),
    ("GET", "/v1/webhooks", None),
    ("GET", "/v1/tokens", None),
    ("PATCH", "/v1/health/limits", {"lag": 1}),
]


@pytest.fixture(scope="module")
def house(server: EmbeddedPostgres) -> Iterator[Standing]:
    """Set up a QUEUE jobs with a message, and a PUB_SUB topic events with a DEAD group."""
    with standing(server) as stood:
        stood.run(_furnish(stood))
        stood.sql("update postbus.subscription set state = 'DEAD' returning 1")
        yield stood


async def _furnish(stood: Standing) -> None:
    await stood.bus.admin.create_topic("events", semantics="PUB_SUB")
    await stood.bus.admin.subscribe_group("mail", "events", start=Start.BEGINNING)
    await stood.bus.send("jobs", 1)
    await stood.bus.send_many("events", [1, 2, 3])


@pytest.fixture(scope="module")
def tokens(house: Standing) -> dict[str, str]:
    return {role: house.token(role) for role in ROLES}


@pytest.mark.parametrize(("name", "role"), _REFUSED)
def test_role_cannot_open_routes_of_other_roles(house: Standing, tokens: dict[str, str], name: str, role: str) -> None:
    """The answer is 403 and says which role is missing, and nothing of the content."""
    method, path, body, allowed = TABLE[name]
    told = problem(house.ask(tokens[role], method, path, body), 403, "PB441")
    missing = told["detail"].partition("lacks the role ")[2].partition(":")[0].split(" or ")
    assert allowed.intersection(missing)
    assert "postbus tokens create" in told["remedy"]


@pytest.mark.parametrize("name", _GUARDED)
def test_stranger_opens_nothing(house: Standing, name: str) -> None:
    """Without a token every route answers 401."""
    method, path, body, _ = TABLE[name]
    problem(house.ask(None, method, path, body), 401, "PB440")


@pytest.mark.parametrize("role", ["observer", "operator"])
@pytest.mark.parametrize(("method", "path", "body"), _DELETES)
def test_operators_and_observers_cannot_lose_messages(
    house: Standing, tokens: dict[str, str], role: str, method: str, path: str, body: Any
) -> None:
    """Requests that delete, skip or redirect messages are refused, and everything stays as before."""
    before = _all(house)
    problem(house.ask(tokens[role], method, path, body), 403, "PB441")
    assert _all(house) == before


def _all(house: Standing) -> Any:
    return house.sql(
        "select (select array_agg((s.group_name, s.state)::text) from postbus.subscription s) as groups, "
        "(select count(*) from postbus.queued) as queued, "
        "(select array_agg(t::text order by t.id) from postbus.topic t) as topics, "
        "(select count(*) from postbus.segment) as segments, (select count(*) from postbus.webhook) as webhooks"
    )


@pytest.mark.parametrize("role", ["operator", "admin"])
@pytest.mark.parametrize(
    "body", [{"start": "FROM_NOW"}, {}, {"start": "FROM_NOW", "confirm": False}, {"confirm": True, "dry_run": True}]
)
def test_unconfirmed_seek_moves_nothing(house: Standing, tokens: dict[str, str], role: str, body: Any) -> None:
    """Neither an operator nor an admin can skip the confirmation."""
    before = house.sql("select * from postbus.cursor order by number")
    answer = house.ask(tokens[role], "POST", "/v1/topics/events/groups/mail/seek", body)
    if body.get("dry_run"):
        assert answer.json() == {"count": 0, "dry_run": True}
    else:
        told = problem(answer, 400, "PB402")
        assert "0 messages" in told["detail"]
        assert "confirm" in told["remedy"]
    assert house.sql("select * from postbus.cursor order by number") == before


@pytest.mark.parametrize(
    "body",
    [
        {"ack": [{"id": "1", "token": "00000000-0000-0000-0000-000000000000"}]},
        {
            "ack": [{"id": "1", "token": "00000000-0000-0000-0000-000000000000"}],
            "push": [{"topic": "jobs", "messages": [{"payload": 1}]}],
        },
    ],
)
def test_producer_cannot_ack_by_a_transaction(house: Standing, tokens: dict[str, str], body: Any) -> None:
    """Each part of a transaction needs its own role."""
    problem(house.ask(tokens["producer"], "POST", "/v1/transaction", body), 403, "PB441")


@pytest.mark.parametrize("digest", [b"", b"guess", b"\\x00" * 32, None])
def test_use_of_a_token_is_recorded_only_with_its_hash(house: Standing, digest: bytes | None) -> None:
    """An SQL role may call the function, but needs the hash of the token's secret."""
    made = house.token("observer").split("_")[1]
    house.sql("select postbus.note_token_uses(array[$1], array[$2::bytea])", made, digest)
    assert house.sql("select last_used_at from postbus.token where id = $1", made) == [{"last_used_at": None}]


@pytest.mark.parametrize("roles", [["king"], ["Admin"], ["admin "], ["postbus_admin"], ["*"], [""], []])
def test_token_with_an_unknown_role_is_refused(house: Standing, roles: list[str]) -> None:
    """Roles are the exact words of a list."""
    with pytest.raises(Exception, match="role"):
        house.token(*roles)


def claims(**given: Any) -> Caller:
    """Return the caller that a JWT with these claims makes."""
    return caller_of({"sub": "ada", **given}, JwtSettings("i", "a", "k"))


@pytest.mark.parametrize(
    "roles",
    [
        "ADMIN",
        "adminx",
        "admin,operator",
        {"admin": True},
        [["admin"]],
        1,
        True,
        None,
        [None, 1],
        "postbus_admin",
        "*",
        [b"admin"],
    ],
)
def test_unknown_role_claim_gives_no_role(roles: Any) -> None:
    """A role matches letter by letter."""
    assert claims(postbus_roles=roles).roles == frozenset()


@pytest.mark.parametrize("groups", [None, 1, True, {"*": 1}, [], "", [["*"]], [None]])
def test_bad_groups_claim_gives_no_group(groups: Any) -> None:
    """All groups are allowed only if there is no such claim."""
    caller = claims(postbus_roles=["consumer"], postbus_topics="*", postbus_groups=groups)
    assert not caller.has_all_groups
    assert not caller.sees_group("mail")
    assert claims(postbus_roles=["consumer"]).has_all_groups


@pytest.mark.parametrize("payloads", [False, None, 0, 1, "true", "false", "", [], [True], {}])
def test_payloads_claim_other_than_true_shows_none(payloads: Any) -> None:
    """Payloads are shown only if it is true or absent; consumers and admins otherwise lose their roles."""
    caller = claims(postbus_roles="consumer admin observer", postbus_payloads=payloads)
    assert not caller.sees_payloads
    assert not caller.has_role(("consumer",))
    assert not caller.has_role(("admin",))
    assert caller.has_role(("observer",))
