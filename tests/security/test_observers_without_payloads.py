"""Attacks on tokens without payloads: a canary in each thing that publishers and handlers write never comes back."""

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
from postbus.server import views
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
    """What the attacks are made on."""

    names: dict[str, list[str]]
    """What the parameters of paths can be."""
    described: dict[str, Any]
    """The server's description of itself."""


@pytest.fixture(scope="module")
def house(server: EmbeddedPostgres) -> Iterator[House]:
    """A QUEUE and a PUB_SUB topic, with messages in every state there is."""
    with standing(server) as stood:
        stood.__class__ = House
        assert isinstance(stood, House)
        stood.run(_furnish(stood))
        stood.described = stood.ask(None, "GET", "/openapi.json").json()
        stood.sql("select postbus.note_failure('sweep', 0, $1)", PLANTED["sweep"])
        for table, column in (("sweep_job", "failed_at"), ("sink_away", "told_at")):  # or they were over soon
            stood.sql(
                f"update postbus.{table} set {column} = clock_timestamp() + interval '1 day' where error is not null"
            )
        stood.sql(
            "delete from postbus.segment where position = (select min(position) from postbus.segment) returning 1"
        )
        yield stood


@pytest.fixture(scope="module")
def without(house: House) -> str:
    """A token without payloads, of the roles that look."""
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
    """Each GET operation of the description, with each value of its parameters: its name, path and query."""
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
    """What of the planted is in a text, as it is or encoded in one of the ways that the server has."""
    found = {what for what, planted in PLANTED.items() if planted in text}
    for what, planted in PLANTED.items():
        for shift in range(3):  # wherever in base64 it begins
            encoded = base64.b64encode(b" " * shift + planted.encode())[shift and 4 : -4].decode()
            if encoded in text:
                found.add(what)
    return found


@pytest.mark.parametrize(
    "operation", [name for name, row in TABLE.items() if row[0] == "GET" and name != "follow_topic"]
)
def test_no_get_brings_a_canary(house: House, without: str, operation: str) -> None:
    """Every GET route of the description, with every parameter that it has."""
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
def test_the_canaries_are_there(house: House, full: str) -> None:
    """With payloads the same requests bring all of them: the attack above would notice it."""
    found: set[str] = set()
    for _, path, query in requests_of(house):
        found |= birds_in(house.ask(full, "GET", path, params=query).text)
    assert found == set(PLANTED)


@pytest.mark.parametrize("topic", ["events", "jobs"])
@pytest.mark.parametrize("last", ["0.0", "1.0"])
def test_no_stream_brings_a_canary(house: House, without: str, full: str, topic: str, last: str) -> None:
    """Following from the beginning: the messages come, and nothing of what is in them."""
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
def test_no_action_of_an_operator_brings_a_canary(house: House, method: str, path: str, body: Any) -> None:
    """It acts, and the answer shows what an observer without payloads sees."""
    answer = house.ask(house.token("operator", payloads=False), method, path, body)
    assert answer.status_code in (200, 409), answer.text
    assert _BIRD not in answer.text


@pytest.mark.parametrize(
    "filters", [{"reason_like": f"{_BIRD}%"}, {"reason_like": "%"}, {"key": PLANTED["key"]}, {"key": ""}]
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_counting_does_not_tell_a_text_letter_by_letter(house: House, filters: dict[str, str], dry_run: bool) -> None:
    """An operator without payloads chooses dead letters by what it may see."""
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
def test_what_brings_payloads_is_closed(house: House, without: str, method: str, path: str, body: Any) -> None:
    """Pops, webhooks and groups of its own."""
    problem(house.ask(without, method, path, body), 403, "PB441")


@pytest.mark.parametrize(
    "roles", [["consumer"], ["admin"], ["observer", "consumer"], ["admin", "operator", "producer"]]
)
def test_no_token_without_payloads_is_a_consumer_or_an_admin(house: House, roles: list[str]) -> None:
    """It would get them all the same, so it is not made."""
    with pytest.raises(Exception, match="bring payloads"):
        house.token(*roles, payloads=False)


@pytest.mark.parametrize("roles", [["producer"], ["observer", "operator", "producer"]])
def test_an_error_brings_no_canary(house: House, roles: list[str]) -> None:
    """What is wrong with a request is said in words of ours."""
    token = house.token(*roles, payloads=False)
    for method, path, body in (
        ("POST", "/v1/topics/jobs/messages", {"payload": 1, "headers": {"event-id": "\n"}}),
        ("GET", f"/v1/topics/events/dead-letters/{house.names['message_id'][0]}", None),
        ("GET", f"/v1/topics/jobs/messages/{house.names['message_id'][0]}", None),
    ):
        assert _BIRD not in house.ask(token, method, path, body).text


# Texts that are neither of publishers nor of handlers: names that operators give, states, and what Postbus says itself.
_OURS = {
    "GroupFinding": {"kind", "level", "topic", "group", "text", "remedy"},
    "GroupView": {"topic", "group_name", "subscription_id", "state", "start", "on_failure", "workers", "members",
                  "catch_up", "problem", "stopped_by", "sink"},
    "CatchUpView": {"topic", "group_name", "reason", "status"},
    "DeliveryView": {"group_name", "status", "worker", "holder"},
    "Looked": {"id", "event_id", "topic", "text", "base64"},
    "Browsed": {"id", "event_id", "topic", "text", "base64", "state", "member"},
    "Story": {"id", "event_id", "topic", "text", "base64", "state", "member", "required", "completed", "status"},
    "DeadLetterView": {"id", "event_id", "topic", "text", "base64", "group_name"},
    "TopicView": {"name", "semantics", "tracking", "storage", "namespace", "task"},
    "SweepHealth": {"reason"},
    "SystemHealth": set(),
}  # fmt: skip
# Those that a token without payloads is not given: it lacks the role.
_CLOSED = {
    "Delivered", "MessageView", "Payload", "Alive", "Pushed", "Settled", "Retried", "Subscribed", "WebhookView",
    "CreatedWebhook", "TokenView", "AuditEntryView", "Problem", "Health", "View",
}  # fmt: skip


def _views() -> list[type[views.View]]:
    return [one for one in vars(views).values() if isinstance(one, type) and issubclass(one, views.View)]


@pytest.mark.control
@pytest.mark.parametrize("kind", _views(), ids=lambda one: one.__name__)
def test_every_text_of_an_answer_was_thought_of(kind: type[views.View]) -> None:
    """A field that is added is WRITTEN by others, or stands above as ours."""
    if kind.__name__ in _CLOSED:
        return
    hints = get_type_hints(kind, include_extras=False)
    texts = {name for name in kind.__struct_fields__ if _holds_text(hints[name])}
    assert texts - set(kind.WRITTEN) - {"headers", "payload", "next"} == _OURS.get(kind.__name__, set())


def _holds_text(hint: Any) -> bool:
    return hint is str or hint is msgspec.Raw or any(_holds_text(one) for one in get_args(hint))


@pytest.mark.control
def test_what_is_withheld_is_said(house: House, without: str) -> None:
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
