"""Relaying to NATS JetStream."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy

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


CREDENTIALS = """-----BEGIN NATS USER JWT-----
the-token-of-the-user
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
the-key-of-the-user
------END USER NKEY SEED------
"""


class _Key:
    """Signs as a key of the package nkeys does, whose algorithm does not matter here."""

    def __init__(self, seed: bytes) -> None:
        self._seed = bytes(seed)

    def sign(self, nonce: bytes) -> bytes:
        return b"%b by %b" % (nonce, self._seed)

    def wipe(self) -> None:
        """Forget nothing: the key is none."""


async def test_credentials_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink shows the server the token in the file, and signs its nonce with the key in the file."""
    monkeypatch.setitem(sys.modules, "nkeys", SimpleNamespace(from_seed=_Key))
    (tmp_path / "user.creds").write_text(CREDENTIALS)
    shown: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required": true, "nonce": "n-1", "max_payload": 1048576, "headers": true}\r\n')
        while line := await reader.readline():
            if line.startswith(b"CONNECT"):
                shown.append(json.loads(line.removeprefix(b"CONNECT")))
            elif line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with opened(NatsSink(f"nats://127.0.0.1:{port}", credentials=str(tmp_path / "user.creds"))):
            (options,) = shown

    signature = base64.urlsafe_b64decode(options["sig"] + "==")
    assert (options["jwt"], signature) == ("the-token-of-the-user", b"n-1 by the-key-of-the-user")


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
