"""Webhooks aimed at what only the server can reach: by address, by name, by redirect, by proxy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx
import pytest

from cli.conftest import cli, end_what_was_started
from cli.helpers import Cli
from http_api.serving import client, problem, serving
from http_api.test_serve import served
from postbus import Ack, Bus, InvalidOption, Retry
from postbus.cli.serve import ServeOptions
from postbus.cli.serve import _open as open_door
from postbus.relay import WebhookSink, reach
from postbus.relay.reach import Reach
from postbus.relay.sinks import sink_of
from relay.parcels import opened, parcel
from relay.receiver import Answer, Receiver, receiving
from support.eventually import eventually

__all__ = ["cli", "end_what_was_started"]  # fixtures
pytestmark = pytest.mark.attack("targets of webhooks")

PUBLIC = "93.184.215.14"
NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1",
    "127.255.255.254", "169.254.169.254", "169.254.170.2", "168.63.129.16", "172.16.0.1", "172.31.255.255", "192.0.0.1",
    "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "192.168.255.255", "198.18.0.1", "198.19.255.255",
    "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::10.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
    "::ffff:8.8.8.8", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "100::1",
    "2001::1", "2001:0:7f00:1::1", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::1", "2002:a9fe:a9fe::",
    "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fdff::1", "fe80::1", "fe80::1%lo", "febf::1", "fec0::1",
    "ff02::1", "ff0e::1",
]  # fmt: skip
THIS_MACHINE = [
    "127.0.0.1", "127.1", "127.0.1", "127.9.8.7", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001",
    "localhost", "LOCALHOST", "localhost.", "0.0.0.0", "0", "[::1]", "[0:0::1]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[::]",
]  # fmt: skip


class Connections:
    """Attempted connections: none of them is made."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    async def connect_tcp(self, host: str, port: int, *rest: Any) -> Any:
        self.tried.append(host)
        raise httpcore.ConnectError("nobody")


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    made = Connections()
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", lambda _, *given: made.connect_tcp(*given))
    return made


def lead(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
    """Resolve names to these addresses, one list for each lookup and the last one for all that follow."""
    left = list(answers)

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[Any]:
        now = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET6 if ":" in one else socket.AF_INET, 1, 6, "", (one, port)) for one in now]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


async def is_refused(url: str, *allowed: str) -> bool:
    async with opened(WebhookSink(reach=Reach(allowed))) as sink:
        [told] = await sink.send([parcel(url)])
    return isinstance(told, Retry) and "may be reached" in str(told.error)


@pytest.fixture(scope="module")
def inside() -> Iterator[Receiver]:
    """Run the receiver that must not be reached."""
    with receiving() as receiver:
        yield receiver


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_address_that_is_not_public_is_not_connected_to(address: str, connections: Connections) -> None:
    """No connection is tried to an address of this machine, of its networks, or of no single host."""
    assert await is_refused(f"http://[{address}]/" if ":" in address else f"http://{address}/")
    assert connections.tried == []


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_name_of_a_private_address_is_not_connected_to(
    address: str, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolved address counts, not the name."""
    lead(monkeypatch, [address])
    assert await is_refused("https://innocent.example.org/")
    assert connections.tried == []


@pytest.mark.parametrize("host", THIS_MACHINE)
async def test_this_machine_is_not_reached_by_any_spelling(host: str, inside: Receiver) -> None:
    """A server on loopback gets no request."""
    port = inside.url.rpartition(":")[2]
    async with opened(WebhookSink(reach=Reach())) as sink:
        [told] = await sink.send([parcel(f"http://{host}:{port}/")])
    assert not isinstance(told, Ack)
    assert inside.received == []


@pytest.mark.control
@pytest.mark.parametrize("address", [PUBLIC, "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00::1"])
async def test_public_addresses_are_reached(
    address: str, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule refuses no more than it should."""
    lead(monkeypatch, [address])
    assert not await is_refused("https://example.org/")
    assert connections.tried == [address]


async def test_name_is_resolved_only_once(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to the checked address, even if the name changes in between."""
    lead(monkeypatch, [PUBLIC], ["127.0.0.1"])
    assert not await is_refused("http://rebinding.example.org/")
    assert connections.tried == [PUBLIC]


async def test_only_public_addresses_of_a_name_are_tried(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with a public and a private address leads to the public one."""
    lead(monkeypatch, ["127.0.0.1", PUBLIC, "10.0.0.1"])
    assert not await is_refused("http://both.example.org/")
    assert connections.tried == [PUBLIC]


async def test_connection_that_ends_up_elsewhere_is_closed(inside: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """If packets are redirected to a private address, that address counts, and nothing is sent."""
    connect = httpcore.AnyIOBackend.connect_tcp
    port = int(inside.url.rpartition(":")[2])

    async def astray(self: Any, host: str, _: int, *rest: Any) -> Any:
        return await connect(self, "127.0.0.1", port, *rest)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", astray)
    assert await is_refused(f"http://{PUBLIC}/")
    assert inside.received == []


async def test_this_machine_is_not_reached_by_its_public_address(
    inside: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Firewalls protect it from others, and not from itself."""
    monkeypatch.setattr(reach, "is_public", lambda address: True)
    assert await is_refused(inside.url)
    assert inside.received == []


async def test_webhook_redirects_are_not_followed(inside: Receiver) -> None:
    """An allowed receiver cannot send the request on."""
    with receiving() as receiver:
        receiver.answers.append(Answer(307, headers={"location": inside.url}))
        async with opened(WebhookSink(reach=Reach(["127.0.0.1"]))) as sink:
            [told] = await sink.send([parcel(receiver.url)])
    assert isinstance(told, Retry)
    assert inside.received == []


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_proxy_of_the_environment_is_not_used(
    name: str, inside: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would reach what the server must not."""
    monkeypatch.delenv("REQUEST_METHOD", raising=False)
    monkeypatch.setenv(name, inside.url)
    assert await is_refused("http://10.0.0.1/")
    assert inside.received == []


BAD_URLS = [
    "http://127.0.0.1/", "http://169.254.169.254/latest/meta-data", "http://[::1]:8472/v1/tokens", "http://localhost/",
    "http://db.localhost/", "http://LOCALHOST./", "http://10.1.2.3/", "http://[::ffff:10.0.0.1]/", "http://[fd00::1]/",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_private_address_is_refused_without_a_lookup(url: str) -> None:
    """Addresses, and names of this machine, need not be resolved."""
    assert not Reach().allows_host(urlsplit(url).hostname or "")


async def test_webhook_with_a_private_address_cannot_be_made(bus: Bus) -> None:
    """The refusal comes at once, and its remedy is for the operator."""
    async with serving(bus, webhook_allow=()) as here, client(here) as http:
        body = {"name": "w", "topic": "jobs", "url": "https://example.org/", "enabled": False}
        assert (await http.post("/v1/webhooks", json=body)).status_code == 201
        for url in BAD_URLS:
            made = await http.post("/v1/webhooks", json=body | {"name": "v", "url": url})
            assert "--webhook-allow" in problem(made, 400, "PB402")["remedy"]
            problem(await http.patch("/v1/webhooks/w", json={"url": url}), 400, "PB402")


async def test_webhook_made_in_sql_reaches_no_more(bus: Bus, conn: Any, inside: Receiver) -> None:
    """The server checks each connection: the message is not sent, and its error says why."""
    await bus.admin.create_topic("jobs", retry_initial="10ms", max_attempts=2)
    await conn.execute("select postbus.create_webhook('w', 'jobs', $1, repeat('s', 20))", inside.url)
    await bus.send("jobs", 1)
    async with serving(bus, webhook_allow=()):

        async def is_dead() -> None:
            assert ["may be reached" in (one.last_error or "") for one in await bus.admin.dead_letters("jobs")] == [
                True
            ]

        await eventually(is_dead, within=20)
    assert inside.received == []


@pytest.mark.control
async def test_network_allowed_by_the_operator_is_reached(cli: Cli, bus: Bus) -> None:
    """`serve --webhook-allow` opens exactly the named networks."""
    options = ("--webhook-allow", "127.0.0.0/30", "--webhook-allow", "fd00::/8")
    with receiving() as receiver:
        async with served(cli, *options) as (_, url), client(url) as http:
            for name, address in (("w", receiver.url), ("v", receiver.url.replace("127.0.0.1", "127.0.0.5"))):
                body = {"name": name, "topic": name, "url": address}
                answer = await http.post("/v1/webhooks", json=body)
                assert answer.status_code == (201 if name == "w" else 400), answer.text
            await bus.send("w", 1)

            async def is_there() -> None:
                assert receiver.received

            await eventually(is_there, within=20)


async def test_up_opens_the_allowed_networks(bus: Bus) -> None:
    """`up --webhook-allow` opens exactly what it names."""
    server = open_door(bus, ServeOptions(0, ("10.0.0.0/8",)))
    try:
        reaches = [server._settings.reach.allows_host(host) for host in ("10.1.2.3", "127.0.0.1")]
    finally:
        server._socket.close()
    assert reaches == [True, False]


@pytest.mark.parametrize(("reach", "count"), [(None, 1), (["127.0.0.1"], 1), ([], 0), (["10.0.0.0/8"], 0)])
async def test_relay_reaches_what_its_operator_allows(reach: list[str] | None, count: int) -> None:
    """It reaches everything, unless the sink's option `reach` limits it to public addresses and the named ones."""
    with receiving() as receiver:
        sink = sink_of(receiver.url, {} if reach is None else {"reach": reach}, lambda name: None)
        async with opened(sink):
            await sink.send([parcel(receiver.url)])
        assert len(receiver.received) == count


@pytest.mark.parametrize(
    ("allowed", "host", "address", "reaches"),
    [
        ("10.1.0.0/16", "x", "10.1.2.3", True),
        ("10.1.0.0/16", "x", "10.2.0.1", False),
        ("10.1.2.3", "x", "::ffff:10.1.2.3", True),
        ("10.1.2.3", "x", "::ffff:10.1.2.4", False),
        ("fd00::/8", "x", "fd12::1", True),
        ("::1", "x", "127.0.0.1", False),
        ("billing.internal", "BILLING.internal.", "10.0.0.1", True),
        ("billing.internal", "x.billing.internal", "10.0.0.1", False),
        ("billing.internal", "billing.internal.evil.org", "10.0.0.1", False),
    ],
)
def test_allowed_entry_allows_no_more_than_it_says(allowed: str, host: str, address: str, reaches: bool) -> None:
    """A network allows its addresses in any spelling, and a host allows itself."""
    assert Reach([allowed]).allows(host, address) is reaches


@pytest.mark.parametrize(
    "bad", ["", "10.0.0.0/99", "10.0.0.1/8", "*", "*.internal", "http://x/", "a b", "256.1.1.1", "x:80"]
)
def test_bad_allowed_entry_is_refused(bad: str) -> None:
    """An entry that is no address, network or host stops the server's start."""
    with pytest.raises(InvalidOption, match="no address, no network"):
        Reach([bad])


async def test_unresolvable_name_leads_nowhere(connections: Connections) -> None:
    """No connection is tried."""
    async with opened(WebhookSink(reach=Reach(), timeout=2)) as sink:
        await asyncio.wait_for(sink.send([parcel("http://nowhere.invalid/")]), 5)
    assert connections.tried == []


def test_guarded_client_ignores_the_environment() -> None:
    """It uses its own transport for every scheme and host."""
    sink = WebhookSink(reach=[])
    made = sink._new_client()
    kinds = {type(made._transport_for_url(httpx.URL(url))).__name__ for url in ("http://a/", "https://a/", "all://a/")}
    assert kinds == {"GuardedTransport"}
