"""Attacks on tokens without payloads: a canary in everything that publishers and handlers write never comes back."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import httpx
import msgspec
import pytest

from http_api.serving import problem
from http_api.test_auth import TABLE
from postbus import Start
from postbus.embedded import EmbeddedPostgres
from postbus.server.app import PARTS
from security.standing import Standing, standing

pytestmark = pytest.mark.attack("tokens without payloads")

_BIRD = "k4n4ry"
PLANTED = {
    what: f"{_BIRD}-{what}"
    for what in (
        "payload",
        "text",
        "bytes",
        "header",
        "key",
        "correlation",
        "error",
        "reason",
        "event",
        "kind",
        "sink",
        "sweep",
    )
}
_WRITTEN_BY_OTHERS = {"kind": f"application/{PLANTED['kind']}"}


class House(Standing):
    """The target of the attacks."""

    names: dict[str, list[str]]
    """The values that parameters of paths can have."""
    described: dict[str, Any]
    """The server's description of itself."""


@pytest.fixture(scope="module")
def house(server: EmbeddedPostgres) -> Iterator[House]:
    """Set up a QUEUE and a PUB_SUB topic, with messages in every state."""
    with standing(server) as stood:
        stood.__class__ = House
        assert isinstance(stood, House)
        stood.run(_furnish(stood))
        stood.described = stood.ask(None, "GET", "/openapi.json").json()
        stood.sql("select postbus.note_failure('sweep', 0, $1)", PLANTED["sweep"])
        for table, column in (("sweep_job", "failed_at"), ("sink_away", "told_at")):  # otherwise they would expire soon
            stood.sql(
                f"update postbus.{table} set {column} = clock_timestamp() + interval '1 day' where error is not null"
            )
        stood.sql(
            "delete from postbus.segment where sequence = (select min(sequence) from postbus.segment) returning 1"
        )
        yield stood


@pytest.fixture(scope="module")
def without(house: House) -> str:
    """Make a token without payloads, for the observing roles."""
    return house.token("observer", "operator", payloads=False)


@pytest.fixture(scope="module")
def full(house: House) -> str:
    return house.token("observer", "operator")


async def _send(bus: Any, topic: str) -> list[int]:
    given: dict[str, Any] = {
        "key": PLANTED["key"], "correlation_id": PLANTED["correlation"],
        "headers": {"x-secret": PLANTED["header"], "event-id": PLANTED["event"]},
    }  # fmt: skip
    return [
        await bus.send(topic, {"secret": PLANTED["payload"]}, **given),
        await bus.send(topic, PLANTED["text"], **given),
        await bus.send(topic, PLANTED["bytes"].encode(), **given),
        await bus.send(topic, b"x", content_type=_WRITTEN_BY_OTHERS["kind"], **given),
    ]


async def _furnish(house: House) -> None:
    bus = house.bus
    await bus.admin.create_topic("events", semantics="PUB_SUB", lanes=1, retry_initial="1 hour", max_attempts=9)
    await bus.admin.create_topic("jobs", retry_initial="1 hour", ordered=False, retention="1 hour")
    for group in ("mail", "quick"):
        await bus.admin.subscribe_group(group, "events", start=Start.BEGINNING, on_failure="pass")
    ids = await _send(bus, "events")
    retried = await bus.pop("events", group="mail", batch=1)
    await retried.retry(error=PLANTED["error"])
    dead = await bus.pop("events", group="quick", batch=4)
    await dead.dead_letter(PLANTED["reason"], error=PLANTED["error"])
    for _ in range(4):
        ids += await _send(bus, "jobs")
    for settle in ("dead", "retried", "done", "leased"):
        popped = await bus.pop("jobs", batch=3, lease="1 hour")
        if settle == "dead":
            await popped.dead_letter(PLANTED["reason"], error=PLANTED["error"])
        elif settle == "retried":
            await popped.retry(error=PLANTED["error"])
        elif settle == "done":
            await popped.ack()
    store = await bus.connect()
    await store.note_sink_away("events", "mail", "process", "kafka", PLANTED["sink"])
    house.names = {
        "topic": ["events", "jobs"],
        "group": ["mail", "quick"],
        "message_id": [str(one) for one in (*ids[:2], *ids[4:15:3])],
        "webhook": ["none"],
    }


_PARAMETERS = {
    "group": ["mail", "quick"], "topic": ["events", "jobs"], "after_id": ["0", "1"], "limit": ["1", "1000"],
    "newest": ["true", "false"], "stuck_after": ["0.001"], "actor": ["x"], "action": ["topic"],
    "since": ["2030-01-01T00:00:00Z"], "until": ["2030-01-01T00:00:00Z"], "before_id": ["1000"],
    # Of a queue, of a log, of dead letters, of names: [0], [0,-1], [0,"",""], ["a"].
    "cursor": ["WzBd", "WzAsLTFd", "WzAsIiIsIiJd", "WyJhIl0"],
}  # fmt: skip


def requests_of(house: House) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield each GET operation with each value of its parameters: its name, path and query."""
    for template, operations in house.described["paths"].items():
        operation = operations.get("get")
        if operation is None or template.endswith("/follow"):
            continue
        parameters = operation.get("parameters", [])
        names = [one["name"] for one in parameters if one["in"] == "path"]
        queries = [one["name"] for one in parameters if one["in"] == "query"]
        assert set(queries) <= set(_PARAMETERS), f"{template}: say which values attacks of its parameters try"
        for values in itertools.product(*(house.names[name] for name in names)):
            path = template
            for name, value in zip(names, values, strict=True):
                path = path.replace(f"{{{name}}}", value)
            for query in ({}, *({name: value} for name in queries for value in _PARAMETERS[name])):
                yield operation["operationId"], path, query


def birds_in(text: str) -> set[str]:
    """Return which planted texts occur in a text, plain or encoded in one of the server's ways."""
    found = {what for what, planted in PLANTED.items() if planted in text}
    for what, planted in PLANTED.items():
        for shift in range(3):  # wherever it begins in base64
            encoded = base64.b64encode(b" " * shift + planted.encode())[shift and 4 : -4].decode()
            if encoded in text:
                found.add(what)
    return found


@pytest.mark.parametrize(
    "operation", [name for name, row in TABLE.items() if row[0] == "GET" and name != "follow_topic"]
)
def test_no_get_route_returns_a_canary(house: House, without: str, operation: str) -> None:
    """Every GET route of the description is called with every parameter."""
    requests = [(path, query) for name, path, query in requests_of(house) if name == operation]
    assert requests
    for path, query in requests:
        answer = house.ask(without, "GET", path, params=query)
        closed = "admin" in TABLE[operation][3] and "observer" not in TABLE[operation][3]
        possible = (403,) if closed else (200, 404, 409, 400) if "cursor" in query else (200, 404, 409)
        assert answer.status_code in possible, (path, query, answer.text)
        assert _BIRD not in answer.text, (path, query)
        assert not birds_in(answer.text), (path, query)


@pytest.mark.control
def test_canaries_are_returned_with_payloads(house: House, full: str) -> None:
    """The same requests return all of them, so the attack would notice a leak."""
    found: set[str] = set()
    for _, path, query in requests_of(house):
        found |= birds_in(house.ask(full, "GET", path, params=query).text)
    assert found == set(PLANTED)


@pytest.mark.parametrize("topic", ["events", "jobs"])
@pytest.mark.parametrize("last", ["0.0", "1.0"])
def test_no_stream_returns_a_canary(house: House, without: str, full: str, topic: str, last: str) -> None:
    """Following from the beginning shows the messages without their contents."""
    path = f"/v1/topics/{topic}/follow"
    begun = house.stream(full, path, b"\n\n", **{"last-event-id": last})
    seen = house.stream(full, path, PLANTED["text"].encode(), **{"last-event-id": last})
    assert begun
    assert PLANTED["text"].encode() in seen
    told = house.stream(without, path, b"event: message", **{"last-event-id": last})
    told += house.stream(without, path, b'"withheld":true', **{"last-event-id": last})
    assert b'"withheld":true' in told
    assert _BIRD.encode() not in told
    assert not birds_in(told.decode())


_ACTS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/topics/jobs/pause", None),
    ("POST", "/v1/topics/jobs/resume", None),
    ("POST", "/v1/topics/events/groups/mail/pause", None),
    ("POST", "/v1/topics/events/groups/mail/resume", None),
    ("POST", "/v1/topics/events/groups/mail/seek", {"dry_run": True}),
    ("POST", "/v1/topics/events/groups/mail/resurrect", None),
    ("POST", "/v1/topics/events/groups/mail/catch-ups/resume", None),
    ("POST", "/v1/topics/jobs/dead-letters/redrive", {"dry_run": True}),
    ("POST", "/v1/topics/events/dead-letters/redrive", {"dry_run": True, "group": "quick"}),
]


@pytest.mark.parametrize(("method", "path", "body"), _ACTS)
def test_no_operator_action_returns_a_canary(house: House, method: str, path: str, body: Any) -> None:
    """The action works, and the answer shows what an observer without payloads sees."""
    answer = house.ask(house.token("operator", payloads=False), method, path, body)
    assert answer.status_code in (200, 409), answer.text
    assert _BIRD not in answer.text


@pytest.mark.parametrize(
    "filters", [{"reason_like": f"{_BIRD}%"}, {"reason_like": "%"}, {"key": PLANTED["key"]}, {"key": ""}]
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_counting_does_not_reveal_a_text_letter_by_letter(house: House, filters: dict[str, str], dry_run: bool) -> None:
    """An operator without payloads can select dead letters only by what it may see."""
    body = filters | {"dry_run": dry_run}
    token = house.token("operator", payloads=False)
    problem(house.ask(token, "POST", "/v1/topics/jobs/dead-letters/redrive", body), 403, "PB441")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/topics/jobs/pop", {}),
        ("POST", "/v1/topics/jobs/pop", {"auto_ack": True}),
        ("POST", "/v1/topics/events/pop", {"group": "mail"}),
        ("POST", "/v1/pop", {"group": "mail", "pattern": "#"}),
        ("POST", "/v1/webhooks", {"name": "w", "topic": "jobs", "url": "http://127.0.0.1:9/"}),
        ("PUT", "/v1/topics/events/groups/new", {}),
    ],
)
def test_routes_that_return_payloads_are_closed(house: House, without: str, method: str, path: str, body: Any) -> None:
    """These are pops, webhooks and new groups."""
    problem(house.ask(without, method, path, body), 403, "PB441")


@pytest.mark.parametrize(
    "roles", [["consumer"], ["admin"], ["observer", "consumer"], ["admin", "operator", "producer"]]
)
def test_token_without_payloads_cannot_be_consumer_or_admin(house: House, roles: list[str]) -> None:
    """These roles would get payloads anyway, so the token is refused."""
    with pytest.raises(Exception, match="include payloads"):
        house.token(*roles, payloads=False)


@pytest.mark.parametrize("roles", [["producer"], ["observer", "operator", "producer"]])
def test_no_error_returns_a_canary(house: House, roles: list[str]) -> None:
    """A bad request is described in our own words."""
    token = house.token(*roles, payloads=False)
    for method, path, body in (
        ("POST", "/v1/topics/jobs/messages", {"payload": 1, "headers": {"event-id": "\n"}}),
        ("GET", f"/v1/topics/events/dead-letters/{house.names['message_id'][0]}", None),
        ("GET", f"/v1/topics/jobs/messages/{house.names['message_id'][0]}", None),
    ):
        assert _BIRD not in house.ask(token, method, path, body).text


# Texts of neither publishers nor handlers: names that operators give, states, and Postbus' own texts.
_OURS = {
    "GroupFinding": {"kind", "topic", "group", "text", "remedy"},
    "GroupView": {"topic", "group_name", "subscription_id", "workers", "members", "problem", "stopped_by", "sink"},
    "CatchUpView": {"topic", "group_name"},
    "DeliveryView": {"group_name", "worker", "holder"},
    "ObservedMessage": {"id", "event_id", "topic", "text", "base64"},
    "BrowsedMessage": {"id", "event_id", "topic", "text", "base64", "member"},
    "MessageStoryView": {"id", "event_id", "topic", "text", "base64", "member", "required", "completed"},
    "DeadLetterView": {"id", "event_id", "topic", "text", "base64", "group_name"},
    "TopicView": {"name", "namespace", "task"},
    "SweepHealthView": {"reason"},
    "SystemHealthView": set(),
}  # fmt: skip
# Those that a token without payloads cannot get, because it lacks the role.
_CLOSED = {
    "Delivered", "TopicHeartbeat", "PushedIds", "Settled", "Retried", "SubscribedGroup", "WebhookView",
    "CreatedWebhook", "TokenInfo", "AuditEntryView", "Health", "Welcome",
}  # fmt: skip


def _answers() -> list[type[msgspec.Struct]]:
    """All types that answers are made of."""
    found: dict[type[msgspec.Struct], None] = {}
    left = [get_type_hints(route.fn)["return"] for part in PARTS for route in part.ROUTES]
    while left:
        kind = left.pop()
        left.extend(get_args(kind))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
            found[kind] = None
            left.extend(get_type_hints(kind).values())
    return sorted(found, key=lambda one: one.__name__)


@pytest.mark.control
@pytest.mark.parametrize("kind", _answers(), ids=lambda one: one.__name__)
def test_every_text_of_an_answer_is_classified(kind: type[msgspec.Struct]) -> None:
    """A new field is either in WRITTEN, as text of others, or listed above as ours."""
    if kind.__name__ in _CLOSED:
        return
    hints = get_type_hints(kind, include_extras=False)
    texts = {name for name in kind.__struct_fields__ if _holds_text(hints[name])}
    assert texts - set(getattr(kind, "WRITTEN", ())) - {"headers", "payload", "next"} == _OURS.get(kind.__name__, set())


def _holds_text(hint: Any) -> bool:
    return hint is str or hint is msgspec.Raw or any(_holds_text(one) for one in get_args(hint))


@pytest.mark.control
def test_withheld_fields_are_marked(house: House, without: str) -> None:
    """Null is not the same as withheld; ids, states and times stay."""
    answer: httpx.Response = house.ask(without, "GET", "/v1/topics/jobs/dead-letters")
    for one in answer.json()["dead_letters"]:
        assert one["withheld"] is True
        assert one["attempts"] == 1
        assert {
            one[name] for name in ("key", "reason", "last_error", "correlation_id", "content_type", "event_id")
        } == {None}
        assert one["headers"] == {}
        assert not {"payload", "text", "base64"} & one.keys()
    groups = house.ask(without, "GET", "/v1/topics/events/groups").json()["groups"]
    [mail] = [one for one in groups if one["group_name"] == "mail"]
    assert (mail["sink"], mail["sink_error"]) == ("kafka", None)
    assert json.dumps(groups).count("kafka") >= 1
