"""Relaying to NATS JetStream."""

from __future__ import annotations

import base64
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import nkeys
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy
from nkeys import PREFIX_BYTE_ACCOUNT, PREFIX_BYTE_OPERATOR, PREFIX_BYTE_USER

from bench.peers import servers
from bench.peers.servers import Server
from postbus import Ack, Bus, DeadLetter, InvalidOption, Release, Retry, SinkUnavailable
from postbus.relay import NatsSink, NotNow
from relay.parcels import opened, parcel
from support.eventually import eventually
from support.grouping import create_log, is_through
from support.running import running


@asynccontextmanager
async def stream(server: Server, **options: Any) -> AsyncIterator[Any]:
    """Create a stream with all subjects that begin with orders."""
    client = await nats.connect(server.address, error_cb=_ignore)
    try:
        found = client.jetstream()
        await found.add_stream(name="ORDERS", subjects=["orders", "orders.>"], **options)
        yield found
    finally:
        await client.close()


async def _ignore(error: Exception) -> None:
    """Ignore the error: the server is killed on purpose."""


async def all_of(found: Any) -> list[Any]:
    """Return all messages of the stream, in order."""
    pulled = await found.pull_subscribe("", stream="ORDERS", config=ConsumerConfig(ack_policy=AckPolicy.NONE))
    got: list[Any] = []
    while len(got) < (await found.stream_info("ORDERS")).state.messages:
        got += await pulled.fetch(1000, timeout=5)
    await pulled.unsubscribe()
    return got


async def test_full_stream_says_not_now(nats_server: Server) -> None:
    """A stream that discards new messages when it is full refuses for the moment."""
    full = {"max_msgs": 3, "discard": DiscardPolicy.NEW}
    async with stream(nats_server, **full), opened(NatsSink(nats_server.address)) as sink:
        told = await sink.send([parcel("orders", n) for n in range(4)])
    assert [type(one) for one in told] == [Ack, Ack, Ack, NotNow]


async def test_message_sent_after_the_window_is_stored_again(nats_server: Server) -> None:
    """It has the same identity for consumers; within the window the stream has it once."""
    async with stream(nats_server, duplicate_window=0.5) as found, opened(NatsSink(nats_server.address)) as sink:

        async def sent_again() -> int:
            assert await sink.send([parcel("orders")]) == [Ack()]
            stored: int = (await found.stream_info("ORDERS")).state.messages
            return stored

        async def is_stored_twice() -> None:
            assert await sent_again() == 2

        assert [await sent_again(), await sent_again()] == [1, 1]
        await eventually(is_stored_twice)
        first, second = await all_of(found)
    assert first.headers["event_id"] == second.headers["event_id"]


async def test_messages_arrive_in_the_stream(bus: Bus, conn: Any, nats_server: Server) -> None:
    """They arrive in order, with unchanged payloads, their identities and the attributes of events."""
    await create_log(bus, "orders", lanes=1)
    for n in range(3):
        await bus.send("orders", {"n": n}, key="k", headers={"event-type": "placed", "tracestate": "a=b"})
    ids = [one.event_id for one in await bus.admin.log("orders")]
    async with stream(nats_server) as found:
        await bus.relay("orders", NatsSink(nats_server.address), target="orders.{event_type}")
        async with running(bus):
            await is_through(conn, "relay-nats", "orders", passed=3)
        got = await all_of(found)

    assert [(one.subject, one.data) for one in got] == [("orders.placed", b'{"n":%d}' % n) for n in range(3)]
    assert [one.headers["Nats-Msg-Id"] for one in got] == [f"{one}:relay-nats" for one in ids]
    assert got[0].headers["event_type"] == "placed"
    assert got[0].headers["event_id"] == ids[0]
    assert got[0].headers["tracestate"] == "a=b"
    assert got[0].headers["Content-Type"] == "application/json"
    assert got[0].headers["created_at"].endswith("Z")


async def test_message_sent_twice_is_stored_once(nats_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The stream recognises its id, and the relay logs the duplicate."""
    caplog.set_level("INFO", "postbus")
    async with stream(nats_server) as found, opened(NatsSink(nats_server.address)) as sink:
        for _ in range(2):
            assert await sink.send([parcel("orders", 1), parcel("orders", 2)]) == [Ack(), Ack()]
        assert (await found.stream_info("ORDERS")).state.messages == 2
    assert [one.message for one in caplog.records] == ["sink.duplicate sink=nats messages=2"]


async def test_refusals_of_the_stream_are_outcomes(nats_server: Server) -> None:
    """Permanent refusals are given up and temporary ones retried, and other messages are not affected."""
    async with stream(nats_server, max_msg_size=1000), opened(NatsSink(nats_server.address)) as sink:
        told = await sink.send(
            [
                parcel("orders", 1),
                parcel("elsewhere", 2),
                parcel("orders", 3, payload=b"x" * 2000),
                parcel("orders", 4, payload=b"x" * (1 << 20)),
                parcel("orders and others", 5),
                parcel("orders", 6, headers={"bad name": "x"}),
                parcel("orders", 7, headers={"nats-expected-stream": "OTHER"}),
            ]
        )
    assert told[:2] == [Ack(), Retry(error="no stream listens to the subject")]
    assert all(isinstance(one, DeadLetter) for one in told[2:6])
    assert told[6] == Ack()


async def test_subject_of_another_stream_is_refused(nats_server: Server) -> None:
    """This applies if the option `stream` names one."""
    async with stream(nats_server), opened(NatsSink(nats_server.address, stream="OTHER")) as sink:
        [told] = await sink.send([parcel("orders")])
    assert isinstance(told, Retry)
    assert "expected stream does not match" in str(told.error)


class Identity:
    """A key pair of NATS, which signs the tokens of others."""

    def __init__(self, prefix: int) -> None:
        self.seed = nkeys.encode_seed(secrets.token_bytes(32), prefix)
        self._pair = nkeys.from_seed(self.seed)
        self.name = self._pair.public_key.decode()

    def token_for(self, subject: Identity, **claims: Any) -> str:
        """Return a JWT in which this identity vouches for another."""
        body = {
            "jti": secrets.token_hex(8),
            "iat": int(time.time()),
            "iss": self.name,
            "sub": subject.name,
            "name": "x",
        }
        parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, {**body, "nats": {"version": 2, **claims}})
        signed = ".".join(_in_base64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_in_base64(self._pair.sign(signed.encode()))}"


def _in_base64(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


@asynccontextmanager
async def server_with_accounts(credentials: Path) -> AsyncIterator[Server]:
    """Start a server that trusts an operator, and write the credentials of a user of one of its accounts."""
    operator, user = Identity(PREFIX_BYTE_OPERATOR), Identity(PREFIX_BYTE_USER)
    account, system = Identity(PREFIX_BYTE_ACCOUNT), Identity(PREFIX_BYTE_ACCOUNT)
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    limits |= dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    of_account = operator.token_for(account, type="account", limits={**limits, "wildcards": True})
    of_system = operator.token_for(system, type="account", limits={**limits, "mem_storage": 0, "disk_storage": 0})
    trust = f"""
        operator: "{operator.token_for(operator, type="operator")}"
        system_account: {system.name}
        resolver: MEMORY
        resolver_preload: {{ {account.name}: "{of_account}", {system.name}: "{of_system}" }}
    """
    token = account.token_for(user, type="user", subs=-1, data=-1, payload=-1)
    credentials.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    async with servers.nats(trust) as server:
        yield server


async def test_credentials_let_the_sink_in(tmp_path: Path) -> None:
    """A server that trusts accounts takes messages with the user's credentials, and refuses a sink without any."""
    credentials = tmp_path / "user.creds"
    async with server_with_accounts(credentials) as server:
        with pytest.raises(SinkUnavailable, match="Authorization"):
            await NatsSink(server.address).open()
        client = await nats.connect(server.address, user_credentials=str(credentials))
        await client.jetstream().add_stream(name="ORDERS", subjects=["orders"])
        await client.close()
        async with opened(NatsSink(server.address, credentials=str(credentials))) as sink:
            assert await sink.send([parcel("orders")]) == [Ack()]


def test_missing_credentials_are_named(tmp_path: Path) -> None:
    """A path that leads nowhere is no server that is away."""
    with pytest.raises(InvalidOption, match=r"credentials .*nowhere.creds"):
        NatsSink(credentials=str(tmp_path / "nowhere.creds"))


def test_credentials_need_the_package_that_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the sink is refused when it is made, and the remedy installs it."""
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(InvalidOption, match="nkeys is not installed") as caught:
        NatsSink(credentials="user.creds")
    assert "postbus[nats]" in caught.value.remedy


async def test_unconfirmed_messages_are_released(nats_server: Server) -> None:
    """When the server goes away nothing counts as sent, and opening fails until it is back."""
    async with stream(nats_server):
        sink = NatsSink(nats_server.address, timeout="2s")
        await sink.open()
        await nats_server.kill()
        assert await sink.send([parcel("orders")]) == [Release()]
        with pytest.raises(SinkUnavailable, match="NATS does not answer"):
            await sink.open()
        await nats_server.start()
        await sink.open()
        assert await sink.send([parcel("orders")]) == [Ack()]
        await sink.close()
