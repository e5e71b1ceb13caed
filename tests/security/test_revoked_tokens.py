"""A revoked or expired token ends its long polls and streams within five seconds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from postbus.embedded import EmbeddedPostgres
from security.served import Served, database, served, soon

pytestmark = pytest.mark.attack("revoked tokens")
_PROMISED = 5.0  # seconds, in docs/security.md
_SLACK = 1.0


@pytest.fixture(scope="module")
def target(server: EmbeddedPostgres) -> Iterator[Served]:
    """Run a server, and make a token that stays valid."""
    with database(server) as dsn, served(dsn, "--auth") as running:
        running.tokens["all"] = running.new_token("producer", "consumer", "observer", "admin")
        with running.client(running.tokens["all"]) as http:
            for name in ("log", "log2"):
                http.post("/v1/topics", json={"name": name, "options": {"semantics": "PUB_SUB"}}).raise_for_status()
            for name in ("queue", "queue2"):
                http.post("/v1/topics", json={"name": name}).raise_for_status()
            http.put("/v1/topics/log/groups/g", json={}).raise_for_status()
        yield running


class Waiting(threading.Thread):
    """A request that waits, and records what came and when."""

    def __init__(self, target: Served, token: str, method: str, path: str, body: Any = None) -> None:
        super().__init__(daemon=True)
        self._target, self._token = target, token
        self._request = method, path, body
        self.text = ""
        self.status = 0
        self.ended_at = 0.0
        self.start()

    def run(self) -> None:
        method, path, body = self._request
        with (
            self._target.client(self._token) as http,
            http.stream(method, path, json=body, timeout=httpx.Timeout(60)) as answer,
        ):
            self.status = answer.status_code
            for part in answer.iter_text():
                self.text += part
        self.ended_at = time.monotonic()


WAITS: dict[str, tuple[str, str, Any]] = {
    "a poll of a queue": ("POST", "/v1/topics/queue/pop", {"wait": 60}),
    "a poll that acks at once": ("POST", "/v1/topics/queue/pop", {"wait": 60, "auto_ack": True}),
    "a poll of a group": ("POST", "/v1/topics/log/pop", {"group": "g", "wait": 60}),
    "a poll of many topics": ("POST", "/v1/pop", {"group": "g", "pattern": "log", "wait": 60}),
    "a stream of a queue": ("GET", "/v1/topics/queue/follow", None),
    "a stream of a log": ("GET", "/v1/topics/log/follow", None),
}


def test_waits_end_within_five_seconds_of_the_revocation(target: Served) -> None:
    """This holds for any requested wait, and nothing is sent afterwards."""
    token = target.new_token("consumer", "observer")
    waiting = {name: Waiting(target, token, *request) for name, request in WAITS.items()}
    time.sleep(0.5)
    target.revoke(token)
    revoked_at = time.monotonic()

    for name, one in waiting.items():
        one.join(_PROMISED + _SLACK)
        assert not one.is_alive(), name
        assert one.ended_at - revoked_at <= _PROMISED + _SLACK, name
        if "stream" not in name:
            assert (one.status, json.loads(one.text)["code"]) == (401, "PB440"), name
        assert "secret" not in one.text


@pytest.mark.parametrize("wait", WAITS)
def test_nothing_is_delivered_after_the_revocation(target: Served, wait: str) -> None:
    """A message published after the promised time stays available to others."""
    token = target.new_token("consumer", "observer")
    one = Waiting(target, token, *WAITS[wait])
    time.sleep(0.2)
    target.revoke(token)

    def is_over() -> None:
        assert not one.is_alive()

    soon(is_over, within=_PROMISED + _SLACK)
    topic = "log" if "group" in str(WAITS[wait][2]) or "log" in WAITS[wait][1] else "queue"
    with target.client(target.tokens["all"]) as http:
        http.post(f"/v1/topics/{topic}/messages", json={"text": f"secret {wait}"}).raise_for_status()
        group = {"group": "g"} if topic == "log" else {}
        [message] = http.post(f"/v1/topics/{topic}/pop", json={"wait": 10, **group}).json()["messages"]
        assert (message["text"], message["attempt"]) == (f"secret {wait}", 1)
        http.post("/v1/ack", json={"messages": [message]}).raise_for_status()
    assert "secret" not in one.text


def test_messages_published_during_the_revocation_are_not_lost(target: Served) -> None:
    """After the promised seconds none arrives, and none is held or acknowledged for the token."""
    token = target.new_token("consumer", "observer")
    stop = threading.Event()
    arrived: list[float] = []

    def poll() -> None:
        with target.client(token) as http:
            while not stop.is_set():
                answer = http.post("/v1/topics/queue2/pop", json={"wait": 1, "auto_ack": True})
                if answer.status_code != 200:
                    return
                arrived.extend(time.monotonic() for _ in answer.json()["messages"])

    pollers = [threading.Thread(target=poll) for _ in range(4)]
    for poller in pollers:
        poller.start()
    with target.client(target.tokens["all"]) as http:
        sent = 0
        target.revoke(token)
        revoked_at = time.monotonic()
        while time.monotonic() - revoked_at < _PROMISED + _SLACK:
            http.post("/v1/topics/queue2/messages", json={"payload": sent}).raise_for_status()
            sent += 1
            time.sleep(0.02)
        stop.set()
        for poller in pollers:
            poller.join(10)
        assert all(moment - revoked_at <= _PROMISED + _SLACK / 2 for moment in arrived)
        left = http.post("/v1/topics/queue2/pop", json={"count": 1000}).json()["messages"]
        assert {one["attempt"] for one in left} <= {1}
        assert len(left) + len(arrived) == sent


def test_expired_token_ends_its_waits(target: Served) -> None:
    """Its expiry is known in advance, so nobody has to revoke it."""
    made = target.use_database(lambda bus: bus.admin.create_token("brief", ["consumer", "observer"], expires_in=1.5))
    waiting = [Waiting(target, made.token, *WAITS[name]) for name in ("a poll of a queue", "a stream of a log")]
    began = time.monotonic()
    for one in waiting:
        one.join(1.5 + _PROMISED + _SLACK)
        assert not one.is_alive()
    assert time.monotonic() - began >= 1.0


def test_requests_of_a_revoked_token_are_refused_in_time(target: Served) -> None:
    """This holds on a connection that was authenticated before."""
    token = target.new_token("observer")
    with target.client(token) as http:
        assert http.get("/v1/topics").status_code == 200
        target.revoke(token)
        revoked_at = time.monotonic()

        def is_refused() -> None:
            assert http.get("/v1/topics").status_code == 401

        soon(is_refused, within=_PROMISED + _SLACK)
        assert time.monotonic() - revoked_at <= _PROMISED + _SLACK


def test_other_tokens_go_on_waiting(target: Served) -> None:
    """Revoking one token ends no request of another."""
    first, second = target.new_token("consumer"), target.new_token("consumer")
    poll = ("POST", "/v1/topics/queue/pop", {"wait": 60})
    gone, stays = Waiting(target, first, *poll), Waiting(target, second, *poll)
    time.sleep(0.2)
    target.revoke(first)
    gone.join(_PROMISED + _SLACK)
    assert gone.status == 401
    assert stays.is_alive()
    with target.client(target.tokens["all"]) as http:
        http.post("/v1/topics/queue/messages", json={"text": "for the other"}).raise_for_status()
    stays.join(10)
    assert "for the other" in stays.text
