"""Attacks on the limit of tokens to groups: a token for `audit` neither sees nor affects another group."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest

from http_api.serving import problem
from http_api.test_auth import TABLE
from postbus import CatchUp, Start
from postbus.embedded import EmbeddedPostgres
from security.standing import Standing, standing

pytestmark = pytest.mark.attack("limits of tokens to groups")

OTHER = "billing-7f3a"  # appears only where something about that group is shown
_ROLES = ("producer", "consumer", "observer", "operator", "admin")
_T, _G, _O = "/v1/topics/events", "/v1/topics/events/groups/audit", f"/v1/topics/events/groups/{OTHER}"


class House(Standing):
    """The target of the attacks."""

    narrow: str
    """A token of all roles, for the group audit."""
    wide: str
    """One for all groups."""
    dropped: int
    """A message that the log does not have any more, of which only the other group has a copy."""
    dead: int
    """A message that only the other group has given up."""
    both: int
    """A message that both have given up."""


@pytest.fixture(scope="module")
def house(server: EmbeddedPostgres) -> Iterator[House]:
    """Run two servers, with a topic that both groups are subscribed to."""
    with standing(server, servers=2) as stood:
        stood.__class__ = House
        assert isinstance(stood, House)
        stood.narrow = stood.token(*_ROLES, groups=["audit"])
        stood.wide = stood.token(*_ROLES)
        stood.run(_furnish(stood))
        stood.sql(
            "delete from postbus.segment where sequence = (select min(sequence) from postbus.segment) returning 1"
        )
        yield stood


async def _furnish(house: House) -> None:
    bus = house.bus
    await bus.admin.create_topic("events", semantics="PUB_SUB", lanes=1, retry_initial="1 hour", max_attempts=9)
    await bus.admin.create_topic("jobs")
    store = await bus.connect()
    for group in ("audit", OTHER):
        await bus.admin.subscribe_group(group, "events", start=Start.BEGINNING)
    house.dropped, house.dead, house.both = [await bus.send("events", f"message {n}") for n in range(3)]
    [one] = await bus.pop("events", group=OTHER)
    await one.retry(error="of billing")
    [one] = await bus.pop("events", group=OTHER)
    await one.dead_letter("of billing")
    for group in ("audit", OTHER):
        popped = await bus.pop("events", group=group, batch=3)
        for delivery in popped:
            if delivery.message.id == house.both:
                await delivery.dead_letter(f"of {group}")
            else:
                await delivery.ack()
    await bus.send_many("events", [{"n": n} for n in range(8)])
    await bus.send_many("jobs", [{"n": n} for n in range(20)])
    await store.note_sink_away("events", OTHER, "process", "sink", "cannot be reached")
    await store.subscribe("events", f"{OTHER}.late", Start.BEGINNING, "block", CatchUp(beside_from=1))
    await bus.admin.create_webhook("to-billing", "events", "http://127.0.0.1:9/", group=f"{OTHER}.hook", enabled=False)
    await bus.admin.create_webhook("of-queue", "jobs", "http://127.0.0.1:9/", enabled=False)
    await bus.admin.sweep()


_LOOKS = [
    "/v1/topics",
    "/v1/topics/events",
    "/v1/topics/jobs",
    "/v1/groups",
    f"{_T}/groups",
    "/v1/catch-ups",
    "/v1/dead-letters",
    "/v1/dead-letters?limit=1",
    "/v1/dead-letters?limit=1000&after_id=1",
    f"{_T}/dead-letters",
    f"{_T}/dead-letters?limit=1",
    f"{_T}/messages",
    f"{_T}/messages?newest=true",
    "/v1/health",
    "/v1/health?stuck_after=0.001",
    "/v1/health/limits",
    "/v1/health/limits?topic=events",
    "/v1/webhooks",
    f"{_G}",
    f"{_G}/metrics",
    f"{_G}/catch-ups",
    f"{_T}/messages/{{both}}",
    f"{_T}/messages/{{dead}}",
    f"{_T}/messages/{{dropped}}",
    f"{_T}/dead-letters/{{both}}",
    f"{_T}/dead-letters/{{dead}}",
    "/v1/webhooks/to-billing",
    "/v1/webhooks/of-queue",
    "/v1/audit",
    "/v1/audit?action=group&limit=1000",
    "/openapi.json",
    "/",
]


def _path(house: House, path: str) -> str:
    return path.format(both=house.both, dead=house.dead, dropped=house.dropped)


@pytest.mark.parametrize("path", _LOOKS)
def test_no_answer_names_another_group(house: House, path: str) -> None:
    """Its name is in no list, delivery, count or error."""
    answer = house.ask(house.narrow, "GET", _path(house, path))
    assert answer.status_code in (200, 404), answer.text
    assert OTHER not in answer.text


@pytest.mark.control
@pytest.mark.parametrize(
    "path",
    [
        "/v1/groups",
        f"{_T}/groups",
        "/v1/catch-ups",
        "/v1/dead-letters",
        f"{_T}/dead-letters",
        "/v1/health?stuck_after=0.001",
        "/v1/webhooks",
        f"{_T}/messages/{{both}}",
        f"{_T}/messages/{{dropped}}",
        f"{_T}/dead-letters/{{dead}}",
    ],
)
def test_other_group_is_visible_to_a_token_for_all_groups(house: House, path: str) -> None:
    """The attack would notice it."""
    assert OTHER in house.ask(house.wide, "GET", _path(house, path)).text


@pytest.mark.parametrize(
    "path",
    [
        _O,
        f"{_O}/metrics",
        f"{_O}/catch-ups",
        f"{_T}/dead-letters?group={OTHER}",
        f"{_T}/dead-letters/{{both}}?group={OTHER}",
        f"/v1/health/limits?group={OTHER}",
        f"/v1/health/limits?topic=events&group={OTHER}",
    ],
)
def test_request_for_another_group_is_refused(house: House, path: str) -> None:
    """The answer is the same for an existing group and for a missing one."""
    told = problem(house.ask(house.narrow, "GET", _path(house, path)), 403, "PB441")
    absent = problem(house.ask(house.narrow, "GET", _path(house, path).replace(OTHER, "nobody")), 403, "PB441")
    assert told["detail"].replace(OTHER, "nobody") == absent["detail"]
    assert "audit" in told["detail"]


@pytest.mark.parametrize(
    ("there", "absent"),
    [
        (f"{_T}/messages/{{dropped}}", f"{_T}/messages/1"),
        (f"{_T}/dead-letters/{{dead}}", f"{_T}/dead-letters/1"),
        ("/v1/webhooks/to-billing", "/v1/webhooks/none"),
        ("/v1/webhooks/of-queue", "/v1/webhooks/none"),
    ],
)
def test_objects_of_other_groups_look_missing(house: House, there: str, absent: str) -> None:
    """Status and text are those of something that never existed."""
    found = house.ask(house.narrow, "GET", _path(house, there))
    never = house.ask(house.narrow, "GET", absent)
    assert found.status_code == never.status_code == 404

    def plain(answer: httpx.Response, path: str) -> str:
        return answer.text.replace(path.rpartition("/")[2], "ID")

    assert plain(found, _path(house, there)) == plain(never, absent)


def test_counts_over_all_groups_are_left_out(house: House) -> None:
    """These are the number of groups, of dead letters, and the overall status of a message."""
    topic = house.ask(house.narrow, "GET", _T).json()
    assert (topic["groups"], topic["dead"]) == (None, None)
    assert house.ask(house.wide, "GET", _T).json()["dead"] == 3
    story = house.ask(house.narrow, "GET", f"{_T}/messages/{house.both}").json()
    assert (story["required"], story["completed"]) == (["audit"], [])
    assert [one["group_name"] for one in story["deliveries"]] == ["audit"]
    assert "status" not in story
    assert "settled_at" not in story
    assert house.ask(house.narrow, "GET", "/v1/health").json()["sweeping"] is None


_ACTS: list[tuple[str, str, Any]] = [
    ("POST", f"{_T}/pop", {"group": OTHER}),
    ("POST", f"{_T}/pop", {"group": OTHER, "auto_ack": True}),
    ("POST", f"{_T}/pop", {"group": OTHER, "key": "k"}),
    ("POST", f"{_T}/pop", {"group": OTHER, "wait": 1}),
    ("POST", f"{_T}/pop", {"group": "new"}),
    ("POST", f"{_T}/pop", {}),
    ("POST", "/v1/topics/jobs/pop", {}),
    ("POST", "/v1/topics/jobs/pop", {"auto_ack": True}),
    ("POST", "/v1/pop", {"group": OTHER, "pattern": "#"}),
    ("POST", "/v1/pop", {"group": OTHER, "namespace": "shop"}),
    ("POST", f"{_O}/heartbeat", None),
    ("POST", f"{_O}/heartbeat?last=true", None),
    ("POST", "/v1/heartbeat", {"group": OTHER, "pattern": "#"}),
    ("PUT", _O, {}),
    ("PUT", f"{_T}/groups/new", {"start": "FROM_BEGINNING"}),
    ("DELETE", _O, None),
    ("DELETE", f"{_O}?wait=0", None),
    ("POST", f"{_O}/pause", None),
    ("POST", f"{_O}/resume", None),
    ("POST", f"{_O}/cancel", None),
    ("POST", f"{_O}/resurrect", None),
    ("POST", f"{_O}/resurrect?catch_up=false", None),
    ("POST", f"{_O}/seek", {"start": "FROM_NOW", "confirm": True}),
    ("POST", f"{_O}/seek", {"start": "FROM_NOW", "dry_run": True}),
    ("POST", f"{_O}/catch-ups/cancel", None),
    ("POST", f"{_O}/catch-ups/resume", None),
    ("POST", f"{_T}/dead-letters/redrive", {"group": OTHER}),
    ("POST", f"{_T}/dead-letters/redrive", {"group": OTHER, "dry_run": True}),
    ("POST", f"{_T}/dead-letters/redrive", {}),
    ("POST", "/v1/topics/jobs/dead-letters/redrive", {}),
    ("POST", f"{_T}/dead-letters/purge", {}),
    ("POST", f"{_T}/dead-letters/purge", {"group": OTHER}),
    ("POST", f"{_T}/dead-letters/purge", {"dry_run": True}),
    ("POST", "/v1/topics", {"name": "new"}),
    ("PATCH", _T, {"retention": 1}),
    ("DELETE", _T, None),
    ("DELETE", f"{_T}?force=true", None),
    ("POST", "/v1/topics/jobs/pause", None),
    ("POST", "/v1/topics/jobs/resume", None),
    ("POST", "/v1/topics/jobs/purge", {}),
    ("PATCH", "/v1/health/limits", {"lag": 1}),
    ("PATCH", "/v1/health/limits?topic=events", {"lag": 1}),
    ("PATCH", f"/v1/health/limits?topic=events&group={OTHER}", {"lag": 1}),
    ("PATCH", f"/v1/health/limits?group={OTHER}", {"lag": 1}),
    ("POST", "/v1/webhooks", {"name": "w", "topic": "events", "group": OTHER, "url": "http://127.0.0.1:9/"}),
    ("POST", "/v1/webhooks", {"name": "w", "topic": "jobs", "url": "http://127.0.0.1:9/"}),
    ("GET", "/v1/tokens", None),
]


@pytest.mark.parametrize(("method", "path", "body"), _ACTS)
def test_other_group_cannot_be_changed(house: House, method: str, path: str, body: Any) -> None:
    """Nor can anything that all groups share; everything stays as before."""
    before = _state(house)
    problem(house.ask(house.narrow, method, path, body), 403, "PB441")
    assert _state(house) == before


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/v1/webhooks/to-billing", {"enabled": True}),
        ("DELETE", "/v1/webhooks/to-billing", None),
        ("PATCH", "/v1/webhooks/of-queue", {"url": "http://127.0.0.1:10/"}),
        ("DELETE", "/v1/webhooks/of-queue", None),
    ],
)
def test_webhooks_of_other_groups_stay(house: House, method: str, path: str, body: Any) -> None:
    """They look missing to this token."""
    before = _state(house)
    problem(house.ask(house.narrow, method, path, body), 404, "PB445")
    assert _state(house) == before


def _state(house: House) -> Any:
    return house.sql(
        "select (select array_agg((s.topic_id, s.group_name, s.state, s.stopped_at)::text order by s.id) "
        "   from postbus.subscription s) as groups, "
        "(select array_agg(c::text order by c.number) from postbus.cursor c) as cursors, "
        "(select array_agg(d.id || d.reason order by d.id, d.reason) from postbus.dead_letter d) as dead, "
        "(select array_agg((r.id, r.token, r.attempts, r.subscription_id)::text order by r.id, r.subscription_id) "
        "   from postbus.deferred r where r.subscription_id not in "
        "        (select id from postbus.subscription where group_name = 'audit')) as retrying, "
        "(select array_agg((l.token, l.open_ids)::text order by l.token) from postbus.lease l) as leases, "
        "(select count(*) from postbus.queued) as queued, "
        "(select array_agg(t::text order by t.id) from postbus.topic t) as topics, "
        "(select array_agg(w::text order by w.name) from postbus.webhook w) as webhooks, "
        "(select count(*) from postbus.health_limit) as limits"
    )


_SPELLINGS = [
    "bill%69ng-7f3a",
    "%62illing-7f3a",
    "billing-7f3a%2F",
    "billing-7f3a%252F",
    "%2562illing-7f3a",
    "billing-7f3a%00",
    "BILLING-7F3A",
    "audit%2F..%2Fbilling-7f3a",
    "..%2Fbilling-7f3a",
    "audit%1Fbilling-7f3a",
    "billing-7f3a;audit",
    "billing-7f3a%20",
    "billing-7f3a%23audit",
    "%EF%BD%82illing-7f3a",
    "billing-7f3a?group=audit",
    "billing-7f3a#audit",
    "*",
    "a*",
    "audit*",
    "audi",
    "audit2",
    "Audit",
    "audit%0A",
    "%00audit",
    "audit,billing-7f3a",
    "audit.",
    "xaudit",
]


@pytest.mark.parametrize("spelling", _SPELLINGS)
def test_no_spelling_of_a_path_reaches_another_group(house: House, spelling: str) -> None:
    """Encodings, other letters and parts of the name all fail."""
    before = _state(house)
    query = f"{_T}/groups/{spelling}"
    for method, path in (("GET", query), ("POST", query.replace(spelling, spelling.partition("?")[0]) + "/pause")):
        answer = house.ask(house.narrow, method, path)
        assert answer.status_code in (400, 403, 404, 405), answer.text
        assert "subscription_id" not in answer.text
    assert _state(house) == before


@pytest.mark.parametrize(
    "body", ["audit\x00", " audit", "audit ", "audit\n", "AUDIT", "audit/x", "audit:" + OTHER, "*", ""]
)
def test_no_spelling_in_a_body_pops_for_another_group(house: House, body: str) -> None:
    """The name in a body is compared letter by letter."""
    answer = house.ask(house.narrow, "POST", f"{_T}/pop", {"group": body})
    assert answer.status_code in (400, 403), answer.text


_SETTLING: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "ack": ("/v1/ack", lambda held: {"messages": held}),
    "retry": ("/v1/retry", lambda held: {"messages": held, "delay": 0}),
    "dead-letter": ("/v1/dead-letter", lambda held: {"messages": held, "reason": "attack"}),
    "release": ("/v1/release", lambda held: {"messages": held}),
    "extend": ("/v1/extend", lambda held: {"messages": held, "lease": 3600}),
    "transaction": ("/v1/transaction", lambda held: {"ack": held}),
}


@pytest.mark.parametrize("by", [0, 1], ids=["by the same server", "by another server"])
@pytest.mark.parametrize("of", ["a group", "a queue", "many topics"])
@pytest.mark.parametrize("how", _SETTLING)
def test_lease_of_another_group_cannot_be_settled(house: House, how: str, of: str, by: int) -> None:
    """A caller with a leaked lease token can neither settle nor extend it, and its owner still can."""
    path, body = {
        "a group": (f"{_T}/pop", {"group": OTHER}),
        "a queue": ("/v1/topics/jobs/pop", {}),
        "many topics": ("/v1/pop", {"group": OTHER, "pattern": "events"}),
    }[of]
    [popped] = house.ask(house.wide, "POST", path, body | {"lease": 60}).json()["messages"]
    before = _leases_of(house, popped)
    assert before
    attack, with_body = _SETTLING[how]
    mine = house.ask(house.narrow, "POST", f"{_T}/pop", {"group": "audit"}).json()["messages"]

    for held in ([popped], [*mine, popped]):
        told = problem(house.ask(house.narrow, "POST", attack, with_body(_held(held)), server=by), 403, "PB441")
        assert "billing" not in json.dumps(told)
        assert _leases_of(house, popped) == before

    for token, held in ((house.wide, [popped]), (house.narrow, mine)):
        if held:
            assert house.ask(token, "POST", "/v1/release", {"messages": _held(held)}, server=by).json()["lost"] == []


def _held(deliveries: list[Any]) -> list[dict[str, str]]:
    return [{"id": one["id"], "token": one["token"]} for one in deliveries]


def _leases_of(house: House, popped: Any) -> Any:
    token = UUID(popped["token"])
    return house.sql(
        "select l.ends_at, l.open_ids::text as held from postbus.lease l where l.token = $1 "
        "union all select r.due_at, r.id::text from postbus.deferred r where r.token = $1",
        token,
    )


def test_lease_of_another_topic_cannot_be_settled(house: House) -> None:
    """The same applies to tokens that are limited to topics."""
    elsewhere = house.token("consumer", topics=["events"])
    [popped] = house.ask(house.wide, "POST", "/v1/topics/jobs/pop", {}).json()["messages"]
    for by in (0, 1):
        problem(house.ask(elsewhere, "POST", "/v1/ack", {"messages": _held([popped])}, server=by), 403, "PB441")
    assert house.ask(house.wide, "POST", "/v1/ack", {"messages": _held([popped])}).json()["settled"] == 1


@pytest.mark.control
def test_token_for_a_group_works_for_it(house: House) -> None:
    """It pops, extends, acknowledges with a push, reads, pauses and seeks, so that the refusals mean something."""
    [popped] = house.ask(house.narrow, "POST", f"{_T}/pop", {"group": "audit"}).json()["messages"]
    for server in (1, 0):
        extend = {"messages": _held([popped]), "lease": 30}
        assert house.ask(house.narrow, "POST", "/v1/extend", extend, server=server).json()["settled"] == 1
    both = {"ack": _held([popped]), "push": [{"topic": "events", "messages": [{"payload": 1}]}]}
    assert house.ask(house.narrow, "POST", "/v1/transaction", both, server=1).status_code == 200
    for path in (f"{_G}/heartbeat", f"{_G}/pause", f"{_G}/resume"):
        assert house.ask(house.narrow, "POST", path).status_code == 200
    assert house.ask(house.narrow, "POST", f"{_G}/seek", {"confirm": True}).json()["dry_run"] is False
    wide = {"group": "audit", "pattern": "events"}
    assert house.ask(house.narrow, "POST", "/v1/pop", wide).status_code == 200
    assert house.ask(house.narrow, "GET", _G).json()["group_name"] == "audit"
    assert house.ask(house.narrow, "GET", f"{_T}/dead-letters?group=audit").json()["dead_letters"]
    hook = {"name": "audit", "topic": "events", "group": "audit", "url": "http://127.0.0.1:9/", "enabled": False}
    assert house.ask(house.narrow, "POST", "/v1/webhooks", hook).status_code == 201
    assert house.ask(house.narrow, "DELETE", "/v1/webhooks/audit").status_code == 204
    for verb in ("redrive", "purge"):
        dry = {"group": "audit", "dry_run": True}
        assert house.ask(house.narrow, "POST", f"{_T}/dead-letters/{verb}", dry).json()["count"] == 1


@pytest.mark.parametrize("groups", [[], [""], ["a b"], ["-x"], ["x\n"], ["audit", "%"], ["a" * 201]])
def test_bad_group_patterns_are_refused(house: House, groups: list[str]) -> None:
    """An empty list does not make a token for all groups."""
    with pytest.raises(Exception, match="group pattern"):
        house.token("consumer", groups=groups)


@pytest.mark.parametrize(
    ("pattern", "group"), [("a_dit", "audit"), ("a%", "audit"), ("a\\%", "a%"), ("*.audit", "xaudit")]
)
def test_group_pattern_is_no_sql_pattern(house: House, pattern: str, group: str) -> None:
    """Where the database filters lists, only * is a wildcard."""
    rows = house.run(house.bus.admin.dead_letters("events", groups=[pattern]))
    assert [row for row in rows if row.group_name == group] == []


@pytest.mark.control
def test_every_route_is_covered() -> None:
    """A route is attacked above, or listed here because a limit to groups does not concern it."""
    of_topics = {"push", "browse_messages", "follow_topic", "welcome", "livez", "readyz"}
    attacked = {_operation("GET", path) for path in _LOOKS} | {_operation(method, path) for method, path, _ in _ACTS}
    attacked |= {_operation("POST", path) for path, _ in _SETTLING.values()} | {"set_webhook", "delete_webhook"}
    assert set(TABLE) - attacked - of_topics == set()


def _operation(method: str, path: str) -> str | None:
    def shape(text: str) -> str:
        text = re.sub(r"^/v1/topics/[^/]+", "/v1/topics/T", text.partition("?")[0])
        text = re.sub(r"/groups/[^/]+", "/groups/G", text)
        text = re.sub(r"/webhooks/[^/]+", "/webhooks/W", text)
        return re.sub(r"/(messages|dead-letters)/(?!redrive|purge)[^/]+", r"/\1/M", text)

    fitting = [name for name, row in TABLE.items() if row[0] == method and shape(row[1]) == shape(path)]
    return fitting[0] if fitting else None
