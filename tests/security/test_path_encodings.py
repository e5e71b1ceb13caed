"""A token for some topics reaches no other, however the path is written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postbus import Bus
from postbus.embedded import EmbeddedPostgres
from postbus.results.access import TokenRole
from security.under_attack import Target, attacked, database, with_bus

pytestmark = pytest.mark.attack("paths of HTTP that lead to topics of others")

_ROLES: list[TokenRole] = ["producer", "consumer", "observer", "admin"]
_SECRET = b"classified-7391"

# Written in place of the topic in /v1/topics/…/messages. The token is for orders.* only, and the topic is `secret`.
NAMES = [
    "secret", "%73ecret", "%73%65%63%72%65%74", "s%65cret", "%2573ecret", "%252573ecret", "%25252573ecret",
    "%c1%b3ecret", "%e0%81%b3ecret", "%f0%80%81%b3ecret", "%u0073ecret", "%ef%bd%93ecret", "\xf3ecret",
    "SECRET", "Secret", "secret%00", "orders.x%00secret", "%00secret", "secret%00orders.x", "secret%20", "secret%09",
    "secret%0a", "secret%0d%0ax-topic:%20orders.x", "%0asecret", "secret%e2%80%8b", "%ef%bb%bfsecret", "secret%ad",
    "orders.x/../secret", "orders.x/%2e%2e/secret", "orders.x/%252e%252e/secret", "orders.x%2f..%2fsecret",
    "orders.x%2f%2e%2e%2fsecret", "orders.x/..%2fsecret", "orders.x%c0%af..%c0%afsecret", "%c0%ae%c0%ae/secret",
    "orders.x/messages/../../secret", "./secret", "%2e/secret", "../topics/secret", "orders.x/.../secret",
    "orders.x\\..\\secret", "orders.x%5c..%5csecret", "..%5csecret", "\\secret", "secret\\", "orders.x/..;/secret",
    "secret;topic=orders.x", "secret;orders.x", "orders.x;/../secret", "secret%3borders.x", ";orders.x/secret",
    "secret/", "secret//", "/secret", "//secret", "%2fsecret", "secret%2f", "secret%2f%2e", "secret%2forders.x",
    "%1fsecret", "secret%1f", "orders.x%1f..%1fsecret", "orders.x%1fsecret", "orders.%1f%2fsecret",
    "orders.x,secret", "orders.x%2csecret", "secret%23orders.x", "secret#orders.x", "secret%3ftopic=orders.x",
    "secret%26topic=orders.x", "{secret}", "$secret", "orders.x%2b%2f..%2f..%2fsecret", "*", "%2a", "orders.*", "s*",
]  # fmt: skip

# Whole targets, for the parts before and after the topic.
TARGETS = [
    "http://127.0.0.1/v1/topics/secret/messages", "http://orders.x/v1/topics/secret/messages",
    "http://orders.x@127.0.0.1/v1/topics/secret/messages", "HTTP://127.0.0.1/v1/topics/%73ecret/messages",
    "//127.0.0.1/v1/topics/secret/messages", "//v1/topics/secret/messages", "/v1//topics/secret/messages",
    "/V1/TOPICS/secret/messages", "/v1/topics/secret/messages/", "/v1/topics/secret/messages?topic=orders.x",
    "/v1/topics/secret/messages?topic=orders.x&topic=secret", "/v1/topics/orders.x/messages?topic=secret",
    "/v1/topics/orders.x/messages?topic=orders.x&topic=secret", "/v1/topics/orders.x/messages#/../../secret/messages",
    "/v1/topics/orders.x/..%2f..%2ftopics%2fsecret/messages", "/v1/./topics/./secret/./messages",
    "/v1/topics/orders.x/../../topics/secret/messages", "/x/../v1/topics/secret/messages",
    "/%2e%2e/v1/topics/secret/messages",
    "/v1/topics/secret%2fmessages", "/v1%2ftopics%2fsecret%2fmessages", "%2fv1/topics/secret/messages",
    "/v1/topics/secret/messages;jsessionid=1", "/v1;x=orders.x/topics/secret/messages", "*",
    "v1/topics/secret/messages",
    "/v1/topics/secret/messages%00", "/v1/topics/secret/messages%20HTTP/1.1", "/v1/topics/secret/messages HTTP/1.0",
]  # fmt: skip

# Headers by which some servers turn a request into another one.
HEADERS = [
    ("x-original-url", "/v1/topics/secret/messages"), ("x-rewrite-url", "/v1/topics/secret/messages"),
    ("x-forwarded-prefix", "/v1/topics/secret"), ("x-forwarded-path", "/v1/topics/secret/messages"),
    ("x-script-name", "/v1/topics/secret"), ("x-topic", "secret"), ("host", "secret"), ("x-forwarded-host", "secret"),
]  # fmt: skip


async def _prepare(bus: Bus) -> dict[str, str]:
    await bus.admin.create_topic("orders.x")
    await bus.send("secret", {"text": _SECRET.decode()})
    await bus.send("orders.x", {"text": "mine"})
    return {
        name: (await bus.admin.create_token(name, _ROLES, topics=[topics])).token
        for name, topics in (("orders", "orders.*"), ("all", "*"))
    }


@pytest.fixture(scope="module")
def target(server: EmbeddedPostgres) -> Iterator[Target]:
    """Run a server with the topics orders.x and secret, a token for orders.*, and one for all topics."""
    with database(server) as dsn:
        tokens = with_bus(dsn, _prepare)
        with attacked(dsn, "--auth") as target:
            target.tokens |= tokens
            yield target


def _in_secret(target: Target) -> int:
    return int(target.fetch("select count(*) from postbus.messages where topic = 'secret'"))


@pytest.mark.control
def test_token_for_all_topics_reads_the_secret_topic(target: Target) -> None:
    """The target of the attacks exists, and would be seen."""
    answer = target.ask("GET", "/v1/topics/secret/messages", token=target.tokens["all"])
    assert (answer.status, _SECRET in answer.body) == (200, True)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_other_topic_cannot_be_read(target: Target, name: str) -> None:
    """No spelling of its name reveals its messages or settings."""
    for path in (f"/v1/topics/{name}/messages", f"/v1/topics/{name}"):
        answer = target.ask("GET", path, token=target.tokens["orders"])
        assert _SECRET not in answer.body
        assert answer.status < 500, answer.body
        assert not (answer.status == 200 and answer.json.get("name") == "secret")


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_other_topic_cannot_be_written(target: Target, name: str) -> None:
    """No message is pushed to it, popped from it or deleted."""
    for method, path, body in (
        ("POST", f"/v1/topics/{name}/messages", b'{"payload": 1}'),
        ("POST", f"/v1/topics/{name}/pop", b"{}"),
        ("POST", f"/v1/topics/{name}/purge", b'{"dry_run": false}'),
        ("DELETE", f"/v1/topics/{name}?force=true", None),
    ):
        answer = target.ask(method, path, body, token=target.tokens["orders"])
        assert answer.status < 500, answer.body
        assert _SECRET not in answer.body
    assert _in_secret(target) == 1


@pytest.mark.parametrize("whole", TARGETS)
def test_other_request_target_does_not_reach_the_topic(target: Target, whole: str) -> None:
    """These are absolute forms, slashes, parameters, fragments and repeated queries."""
    for method, body in (("GET", None), ("POST", b'{"payload": 1}')):
        answer = target.ask(method, whole, body, token=target.tokens["orders"])
        assert _SECRET not in answer.body
        assert answer.status < 500, answer.body
    assert _in_secret(target) == 1


@pytest.mark.parametrize(("name", "value"), HEADERS)
def test_headers_do_not_change_the_path(target: Target, name: str, value: str) -> None:
    """Only the path of the request line counts."""
    for method, body in (("GET", None), ("POST", b'{"payload": 1}')):
        answer = target.ask(
            method, "/v1/topics/orders.x/messages", body, token=target.tokens["orders"], headers=((name, value),)
        )
        assert _SECRET not in answer.body
        assert answer.status < 500, answer.body
    assert _in_secret(target) == 1


@pytest.mark.parametrize(
    "query", ["topic=orders.x&topic=secret", "topic=secret&topic=orders.x", "topic=%73ecret", "topic=secret&group=g"]
)
def test_repeated_query_does_not_reach_the_topic(target: Target, query: str) -> None:
    """Health limits are set for the topic that was checked, or not at all."""
    for method, body in (("GET", None), ("PATCH", b'{"lag": 7391}')):
        answer = target.ask(method, f"/v1/health/limits?{query}", body, token=target.tokens["orders"])
        assert answer.status < 500, answer.body
    told = target.ask("GET", "/v1/health/limits?topic=secret", token=target.tokens["all"])
    assert told.json["lag"] != 7391
