"""Attacks on the audit log over HTTP: acting under another name, and reading entries not meant for the token."""

from __future__ import annotations

from typing import Any

import pytest

from http_api.serving import client, serving
from postbus import Bus
from postbus._db.actor import shown_actor
from security.test_audit import DANGEROUS

pytestmark = pytest.mark.attack("the audit log over HTTP")

_HEADERS = (
    "postbus-actor", "x-postbus-actor", "x-forwarded-user", "x-remote-user", "x-actor", "from", "user-agent", "via",
)  # fmt: skip
_FILTERS = [
    {"topic": "secret"}, {"action": "token"}, {"action": "webhook"}, {"actor": "root"}, {"actor": "%"}, {"action": "%"},
    {"topic": "%"}, {"topic": "*"}, {"group": "g"}, {"topic": "' or true --"}, {"actor": "' or true --"},
    {"action": "token' or '1'='1"}, {"actor": "\\"}, {"before_id": "999999999999999999"},
    {"since": "0001-01-01T00:00:00Z"},
]  # fmt: skip
_BROKEN = [
    {"before_id": "-1"}, {"before_id": "9999999999999999999999"}, {"before_id": "1 or 1=1"}, {"limit": "0"},
    {"limit": "1001"}, {"limit": "1e9"}, {"since": "yesterday"}, {"until": "' or true"}, {"topics": "*"},
    {"after_id": "0"}, {"actor": "\0"}, {"topic": "\0"}, {"since": "99999-01-01T00:00:00Z"},
]  # fmt: skip


async def test_no_header_changes_the_recorded_actor(bus: Bus) -> None:
    """Neither a header nor a token's name forges the actor, and no control character of them reaches a terminal."""
    made = await bus.admin.create_token("x\u202ey" + "z" * 190, ["admin"])
    async with serving(bus, auth=True) as url, client(url, made.token) as http:
        for n, header in enumerate(_HEADERS):
            answer = await http.post("/v1/topics", json={"name": f"t{n}"}, headers={header: "token:000000 root"})
            assert answer.status_code == 201, header
        entries = await bus.admin.audit(action="topic.create")
    assert len(entries) == len(_HEADERS)
    assert {one.actor for one in entries} == {shown_actor(f"token:{made.id} x?y" + "z" * 190)}


@pytest.mark.parametrize("kind", DANGEROUS)
def test_names_of_issuers_and_accounts_are_one_short_line(kind: str) -> None:
    """This applies to subjects of JWTs and to names of tokens and accounts."""
    told = shown_actor(f"jwt:{DANGEROUS[kind]}")
    assert told.isprintable()
    assert len(told) <= 200


async def test_token_with_some_topics_reads_no_other_entries(bus: Bus) -> None:
    """No filter widens the view, and none makes the server fail."""
    await bus.admin.acting_as("root").create_topic("secret")
    await bus.admin.create_topic("orders.new")
    made = await bus.admin.create_token("few", ["admin"], topics=["orders.*"])
    async with serving(bus, auth=True) as url, client(url, made.token) as http:
        for params in _FILTERS:
            answer = await http.get("/v1/audit", params=params)
            assert answer.status_code == 200, answer.text
            found: list[dict[str, Any]] = answer.json()["entries"]
            assert {one["topic"] for one in found} <= {"orders.new"}, params
        for params in _BROKEN:
            assert (await http.get("/v1/audit", params=params)).status_code == 400, params


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_no_method_changes_the_audit_log(bus: Bus, method: str) -> None:
    """The log can only be read."""
    await bus.admin.create_topic("t")
    before = await bus.admin.audit()
    async with serving(bus) as url, client(url) as http:
        for path in ("/v1/audit", "/v1/audit/1"):
            assert (await http.request(method, path, json={})).status_code in (404, 405)
    assert await bus.admin.audit() == before
