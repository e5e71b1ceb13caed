"""postbus serve and postbus tokens, as processes: addresses, authentication, TLS, CORS, ends, and kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from cli.conftest import cli, end_what_was_started, folder
from cli.helpers import Cli, deliver, finish, processes_of, start
from http_api.serving import client, new_token, problem
from postbus import Bus
from support.fix_database import Connect

__all__ = ["cli", "end_what_was_started", "folder"]  # fixtures
EXAMPLES = Path(__file__).parents[2] / "examples" / "http"


@asynccontextmanager
async def served(cli: Cli, *options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run a server in a process of its own, and return it with its address."""
    process = await cli.start("serve", "--port", "0", "--json", *options)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line = await process.stdout.readline()
    assert line, await finish(process)
    yield process, json.loads(line)["url"].replace("0.0.0.0", "127.0.0.1")
    if process.returncode is None:
        process.kill()
        await process.communicate()


async def test_server_runs_until_a_signal(cli: Cli) -> None:
    """It prints its address, SIGTERM ends it with 0, and a waiting poll then returns empty."""
    async with served(cli) as (process, url):
        async with client(url) as http:
            assert (await http.get("/readyz")).status_code == 200
            polling = asyncio.create_task(http.post("/v1/topics/t/pop", json={"wait": 60}))
            assert (await http.post("/v1/topics/t/pop", json={})).status_code == 200

            process.send_signal(signal.SIGTERM)

            assert (await polling).status_code in (200, 503)
        (await finish(process)).done()


async def test_open_server_refuses_a_public_address(cli: Cli) -> None:
    """The error says what to do instead; a port that is in use is reported too."""
    refused = (await cli("serve", "--host", "0.0.0.0", "--json")).failed(4).error
    assert "there is no authentication" in refused["message"]
    assert "--auth" in refused["remedy"]
    async with served(cli) as (_, url):
        taken = (await cli("serve", "--port", url.rpartition(":")[2], "--json")).failed(4).error
        assert "cannot listen" in taken["message"]


async def test_tokens_are_made_listed_and_revoked(cli: Cli) -> None:
    """A token from the command line opens exactly its routes and topics."""
    made = (
        await cli.quick(
            "tokens", "create", "shop", "--role", "producer", "--topic", "orders.*", "--expires-in", "1d", "--json"
        )
    ).json
    listed = (await cli.quick("tokens", "list", "--json")).json
    async with served(cli, "--host", "0.0.0.0", "--auth") as (_, url):
        async with client(url, made["token"]) as http:
            assert (await http.post("/v1/topics/orders.new/messages", json={"payload": 1})).status_code == 201
            problem(await http.post("/v1/topics/bills/messages", json={"payload": 1}), 403, "PB441")
        assert [(one["id"], one["name"], one["topics"]) for one in listed] == [(made["id"], "shop", ["orders.*"])]
        assert (await cli.quick("tokens", "revoke", made["id"])).done().out == f"revoked {made['id']}\n"
        assert "revoked" in (await cli.quick("tokens", "list")).done().out
        (await cli.quick("tokens", "revoke", "none")).failed(3)
        assert "pbt_" in (await cli.quick("tokens", "create", "x", "--role", "admin")).done().out
        (await cli.quick("tokens", "create", "x", "--role", "king")).failed(4)


async def test_limits_are_options_of_serve(cli: Cli) -> None:
    """Each limit of the command line is one of the server."""
    async with served(cli, "--max-body", "2000", "--max-batch", "2", "--max-polls", "0", "--rate", "1000") as (_, url):
        async with client(url) as http:
            problem(await http.post("/v1/topics/t/messages", json={"text": "x" * 3000}), 413, "PB443")
            problem(await http.post("/v1/topics/t/messages", json=[{"payload": 1}] * 3), 413, "PB443")
            problem(await http.post("/v1/topics/t/pop", json={"wait": 1}), 429, "PB442")
        (await cli("serve", "--rate", "0", "--json")).failed(4)


async def test_pages_of_an_allowed_origin_may_call(cli: Cli) -> None:
    """CORS is off unless an origin is named."""
    async with served(cli, "--cors-origin", "https://app.example.org") as (_, url):
        asked = {"origin": "https://app.example.org", "access-control-request-method": "POST"}
        async with client(url) as http:
            allowed = await http.options("/v1/topics/t/pop", headers=asked)
            answer = await http.get("/v1/topics", headers={"origin": "https://app.example.org"})
            problem(await http.get("/v1/topics", headers={"origin": "https://other.example.org"}), 403, "PB441")
        assert allowed.headers["access-control-allow-origin"] == "https://app.example.org"
        assert answer.headers["access-control-allow-origin"] == "https://app.example.org"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_server_can_serve_https(cli: Cli, tmp_path: Path) -> None:
    """It needs a certificate and its key; one of them alone is refused."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    async with served(cli, "--tls-cert", str(cert), "--tls-key", str(key)) as (_, url):
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        async with httpx.AsyncClient(base_url=url, verify=context, trust_env=False) as http:
            assert (await http.get("/livez")).status_code == 200
        (await cli("serve", "--tls-cert", str(cert), "--json")).failed(4)


async def test_jwts_of_an_issuer_are_accepted(cli: Cli, tmp_path: Path, bus: Bus) -> None:
    """Roles and topics come from claims; a JWT of another key, issuer or audience is refused."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "one", "use": "sig", "alg": "RS256"}
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [public]}))
    async with served(
        cli,
        "--host",
        "0.0.0.0",
        "--jwt-issuer",
        "https://id.example.org",
        "--jwt-audience",
        "postbus",
        "--jwt-jwks",
        str(jwks),
        "--jwt-roles-claim",
        "roles",
        "--jwt-topics-claim",
        "topics",
        "--jwt-groups-claim",
        "groups",
        "--jwt-payloads-claim",
        "payloads",
    ) as (_, url):
        good = {
            "iss": "https://id.example.org", "aud": "postbus", "sub": "ada", "exp": time.time() + 60,
            "roles": ["producer"], "topics": "orders.* bills",
        }  # fmt: skip

        def signed(claims: dict[str, Any], by: Any = key, kid: str = "one") -> str:
            return jwt.encode(claims, by, algorithm="RS256", headers={"kid": kid})

        async def push(token: str, topic: str = "orders.new") -> httpx.Response:
            async with client(url, token) as http:
                return await http.post(f"/v1/topics/{topic}/messages", json={"payload": 1})

        assert (await push(signed(good))).status_code == 201
        assert (await push(signed(good), "bills")).status_code == 201
        problem(await push(signed(good), "secret"), 403, "PB441")
        problem(await push(signed(good | {"roles": ["observer"]})), 403, "PB441")
        looks = good | {"roles": ["observer", "consumer"], "topics": "*", "groups": ["audit"], "payloads": False}
        async with client(url, signed(looks)) as http:
            assert [one["withheld"] for one in (await http.get("/v1/topics/bills/messages")).json()["messages"]] == [
                True
            ]
            problem(await http.get("/v1/topics/bills/groups/mail"), 403, "PB441")
            told = problem(await http.post("/v1/topics/bills/pop", json={"group": "audit"}), 403, "PB441")
            assert "without payloads" in told["detail"]
        without_exp = {name: value for name, value in good.items() if name != "exp"}
        as_password = jwt.encode(good, "x" * 32, algorithm="HS256", headers={"kid": "one"})
        for bad in (
            signed(good | {"iss": "https://evil.example.org"}), signed(good | {"aud": "others"}),
            signed(good | {"exp": time.time() - 60}), signed(without_exp), signed(good, other), signed(good, kid="two"),
            as_password, jwt.encode(good, "", algorithm="none"), "a.b.c", "no",
        ):  # fmt: skip
            problem(await push(bad), 401, "PB440")
        assert (await push(await new_token(bus, "producer"))).status_code == 201
        (await cli("serve", "--jwt-issuer", "x", "--json")).failed(2)


async def test_second_signal_does_not_wait(cli: Cli) -> None:
    """A stream that nobody reads is waited for only until the second Ctrl-C."""
    async with served(cli) as (process, url), client(url) as http:
        await http.post("/v1/topics/t/messages", json={"payload": 1})
        async with http.stream("GET", "/v1/topics/t/follow"):
            await deliver(process, signal.SIGINT)
            process.send_signal(signal.SIGINT)
            assert (await finish(process)).code in (0, 130)


async def test_up_serves_http(folder: Path) -> None:
    """`postbus up` prints the address, on the requested port; --no-http leaves it out."""
    process = await start("up", "--data-dir", str(folder), "--json", "--http-port", "0")
    assert process.stdout is not None
    told = json.loads(await process.stdout.readline())
    async with client(told["http"]) as http:
        assert (await http.get("/readyz")).status_code == 200
    process.send_signal(signal.SIGTERM)
    (await finish(process)).done()
    process = await start("up", "--data-dir", str(folder), "--json", "--no-http", "--seconds", "0")
    assert (await finish(process)).done().json["http"] is None
    assert processes_of(folder) == []


@pytest.mark.parametrize(
    ("program", "needs"),
    [((str(EXAMPLES / "consumer.sh"),), ("curl", "jq")), (("node", str(EXAMPLES / "consumer.mjs")), ("node",))],
)
async def test_consumers_in_other_languages_work(
    cli: Cli, bus: Bus, program: tuple[str, ...], needs: tuple[str, ...]
) -> None:
    """The examples pop, work and acknowledge, and a message they cannot handle is a dead letter."""
    absent = [one for one in needs if shutil.which(one) is None]
    if absent:
        pytest.skip(f"{', '.join(absent)} is not installed")
    async with served(cli, "--auth") as (_, url):
        token = await new_token(bus, "consumer", topics=("jobs",))
        for payload in ({"n": 1}, {"x": 0}, {"n": 2}):
            await bus.send("jobs", payload)

        env = {"POSTBUS_URL": url, "POSTBUS_TOKEN": token, "COUNT": "2"}
        ended = await finish(await start(program=program, env=env))

        assert ended.done().out.splitlines() == ["job 1", "job 2"]
        assert [letter.reason for letter in await bus.admin.dead_letters("jobs")] == ["it has no n"]
        assert [row.state for row in await bus.admin.messages("jobs")] == ["dead"]


async def moved_until_killed(url: str) -> int:
    """Move jobs to two other topics, by transactions, until the server is gone. Returns the number of answers."""
    done = 0
    async with client(url) as http:
        try:
            while True:
                popped = (await http.post("/v1/topics/jobs/pop", json={"wait": 5, "lease": 2})).json()["messages"]
                push = [{"topic": topic, "messages": [{"payload": one["payload"]} for one in popped]}
                        for topic in ("left", "right")]  # fmt: skip
                answer = await http.post("/v1/transaction", json={"ack": popped, "push": push})
                done += answer.status_code == 200
        except httpx.HTTPError:
            return done


async def payloads(conn: Any) -> list[list[int]]:
    """Return the payloads of each topic at one moment: the last request of a killed server may still commit later."""
    rows = await conn.fetch("select topic, convert_from(payload, 'utf8')::int as n from postbus.messages order by n")
    return [[row["n"] for row in rows if row["topic"] == topic] for topic in ("left", "right", "jobs")]


@pytest.mark.timeout(180)
async def test_killed_server_loses_nothing_and_does_nothing_half(cli: Cli, bus: Bus, connect: Connect) -> None:
    """After kill -9 amid pops and transactions, each job is moved to both topics or to none, and the rest follows."""
    jobs = list(range(300))
    await bus.send_many("jobs", jobs)
    conn = await connect()
    answered = 0
    for _ in range(3):
        async with served(cli) as (process, url):
            moving = [asyncio.create_task(moved_until_killed(url)) for _ in range(4)]
            before = len((await payloads(conn))[0])
            async with asyncio.timeout(60):
                while len((await payloads(conn))[0]) < before + 20:
                    await asyncio.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            answered += sum(await asyncio.gather(*moving))
            left, right, waiting = await payloads(conn)
            assert left == right
            assert len(set(left)) == len(left) >= answered
            assert sorted(left + waiting) == jobs
    async with served(cli) as (process, url):
        moving = [asyncio.create_task(moved_until_killed(url)) for _ in range(4)]
        async with asyncio.timeout(60):
            while (await payloads(conn))[2]:
                await asyncio.sleep(0.05)
        process.kill()
        await asyncio.gather(*moving)
        assert await payloads(conn) == [jobs, jobs, []]
