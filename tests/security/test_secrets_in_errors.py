"""The password of a DSN appears in no error, answer, log, traceback, repr or process title."""

from __future__ import annotations

import io
import json
import logging
import os
import select
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import psutil
import pytest

from cli.helpers import POSTBUS, environment
from postbus import Bus, PostbusError
from postbus._db.pool import Connections
from postbus._wakeup.listener import Listener
from postbus._wakeup.waiters import Wakers
from postbus.cli._app import run
from postbus.cli._command import Cli
from postbus.cli._doctor.finding import Target
from postbus.embedded import EmbeddedPostgres
from postbus.relay import NatsSink, RabbitSink, RedisSink, WebhookSink
from postbus.relay.postbus import PostbusSink
from postbus.relay.reach import Reach
from postbus.server.serve import HttpServer
from postbus.server.settings import ServerSettings
from postbus.server.webhook_runner import WebhookRunner
from postbus.worker import Worker
from security.under_attack import database

pytestmark = pytest.mark.attack("passwords of connection strings in errors and logs")

SECRET = "hunter2-7391"

# {} is the password. Nobody listens on port 1.
DSNS = {
    "nobody listens": "postgresql://app:{}@127.0.0.1:1/db",
    "several where nobody listens": "postgresql://app:{}@127.0.0.1:1,127.0.0.1:2/db",
    "a host that is unknown": "postgresql://app:{}@host.invalid:5432/db",
    "a socket that is not there": "postgresql://app:{}@/db?host=/nonexistent",
    "a port that is a word": "postgresql://app:{}@127.0.0.1:port/db",
    "a port out of range": "postgresql://app:{}@127.0.0.1:99999/db",
    "two ports": "postgresql://app:{}@127.0.0.1:1:2/db",
    "ports that do not fit the hosts": "postgresql://app:{}@/db?host=127.0.0.1,127.0.0.2,127.0.0.3&port=1,2",
    "an address without its end": "postgresql://app:{}@[::1/db",
    "an address that is none": "postgresql://app:{}@[zz]:1/db",
    "no host": "postgresql://app:{}",
    "no host but a slash": "postgresql://app:{}/db",
    "a slash in the password": "postgresql://app:{}/x@127.0.0.1:1/db",
    "a slash before the password": "postgresql://app:/{}@127.0.0.1:1/db",
    "a number sign in the password": "postgresql://app:{}#x@127.0.0.1:1/db",
    "a number sign before the password": "postgresql://app:#{}@127.0.0.1:1/db",
    "a question mark in the password": "postgresql://app:{}?x@127.0.0.1:1/db",
    "a question mark before the password": "postgresql://app:?{}@127.0.0.1:1/db",
    "an at sign in the password": "postgresql://app:x@{}@127.0.0.1:1/db",
    "a colon in the password": "postgresql://app:x:{}@127.0.0.1:1/db",
    "a bracket in the password": "postgresql://app:[{}@127.0.0.1:1/db",
    "a percent sign in the password": "postgresql://app:{}%zz@127.0.0.1:1/db",
    "bad UTF-8 in the password": "postgresql://app:{}%ff@127.0.0.1:1/db",
    "NUL in the password": "postgresql://app:{}%00@127.0.0.1:1/db",
    "a letter that turns into others": "postgresql://app:{}\u2100@127.0.0.1:1/db",
    "a space in the password": "postgresql://app:{} x@127.0.0.1:1/db",
    "a line end in the password": "postgresql://app:{}\n@127.0.0.1:1/db",
    "the scheme of another database": "mysql://app:{}@127.0.0.1:1/db",
    "one slash": "postgresql:/app:{}@127.0.0.1:1/db",
    "three slashes": "postgresql:///app:{}@127.0.0.1:1/db",
    "no scheme": "app:{}@127.0.0.1:1/db",
    "no user": "{}@127.0.0.1:1/db",
    "words and values": "host=127.0.0.1 port=1 user=app password={} dbname=db",
    "the password as an option": "postgresql://127.0.0.1:1/db?user=app&password={}",
    "the password as an option, twice": "postgresql://127.0.0.1:1/db?password=x&user=app&password={}",
    "the password of a key": "postgresql://app@127.0.0.1:1/db?sslmode=require&sslpassword={}",
    "a mode of TLS that is none": "postgresql://app:{}@127.0.0.1:1/db?sslmode=bogus",
    "a certificate that is not there": "postgresql://app:{}@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/nonexistent",
    "an option that is none": "postgresql://app:{}@127.0.0.1:1/db?target_session_attrs=bogus",
    "a file of passwords that is not there": "postgresql://app:{}@127.0.0.1:1/db?passfile=/nonexistent",
}


def in_process(*args: str, **variables: str) -> str:
    """Run a command within this process, and return everything it prints: errors, logs and tracebacks."""
    told = io.StringIO()
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    handler = logging.StreamHandler(told)
    logging.getLogger().addHandler(handler)
    try:
        with redirect_stdout(told), redirect_stderr(told), ThreadPoolExecutor(1) as thread:
            code = thread.submit(run, list(args)).result()
    finally:
        logging.getLogger().removeHandler(handler)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    assert code != 0
    return told.getvalue()


@pytest.mark.parametrize("how", ["plain", "json", "debug"])
@pytest.mark.parametrize("name", DSNS)
def test_failing_command_does_not_print_the_password(name: str, how: str) -> None:
    """This holds for every bad DSN, as text, as JSON, and in the traceback for bug reports."""
    dsn = DSNS[name].format(SECRET)
    more = {"plain": [], "json": ["--json"], "debug": []}[how]
    variables = {"POSTBUS_DEBUG": "1"} if how == "debug" else {}

    told = in_process("topics", "list", "--dsn", dsn, *more, **variables)

    assert SECRET not in told
    assert told.strip()


COMMANDS: list[list[str]] = [
    ["doctor"], ["migrate"], ["migrate", "--print"], ["publish", "t", "x"], ["pop", "t"], ["tail", "t", "--once"],
    ["serve", "--port", "0"], ["groups", "list"], ["messages", "list", "t"], ["dead-letters", "list"],
    ["sweep", "show"],
    ["tokens", "list"], ["leases", "list", "t"], ["rebase", "--as-copy"], ["import"], ["relay", "status"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", ["nobody listens", "no host", "a letter that turns into others"])
def test_no_command_prints_the_password(command: list[str], name: str) -> None:
    """Each command connects and fails in its own way; one that needs no database may succeed."""
    try:
        told = in_process(*command, "--dsn", DSNS[name].format(SECRET))
    except AssertionError:
        assert command == ["migrate", "--print"]
        return
    assert SECRET not in told


@pytest.mark.parametrize("name", DSNS)
async def test_python_errors_do_not_contain_the_password(name: str) -> None:
    """Neither the error nor its causes do, in any form that a program logs."""
    with pytest.raises(PostbusError) as raised:
        async with Bus.open(DSNS[name].format(SECRET)):
            pass

    error: BaseException | None = raised.value
    told = "".join(traceback.format_exception(raised.value))
    while error is not None:
        told += f"{error}{error!r}{error.args}"
        error = error.__cause__ or error.__context__
    assert SECRET not in told.replace(repr(DSNS[name]), "")


SINKS: list[tuple[Callable[[str], Any], str]] = [
    (NatsSink, "nats://app:{}/x@127.0.0.1:1"), (NatsSink, "nats://app:{}#x@127.0.0.1:1"), (NatsSink, "app:{}"),
    (NatsSink, "nats://app:{}\u2100@127.0.0.1:1"), (NatsSink, "nats://app:{}@127.0.0.1:1"),
    (NatsSink, "nats://127.0.0.1:1,nats://app:{}@127.0.0.1:port"), (NatsSink, "http://app:{}@127.0.0.1:1"),
    (RedisSink, "redis://:{}/x@127.0.0.1:1"), (RedisSink, "redis://app:{}"), (RedisSink, "redis://:{}@127.0.0.1:1"),
    (RedisSink, "redis://:{}\u2100@127.0.0.1:1"), (RedisSink, "redis://:{}@127.0.0.1:port"), (RedisSink, "{}@h:1"),
    (RabbitSink, "amqp://app:{}/x@127.0.0.1:1"), (RabbitSink, "amqp://app:{}"), (RabbitSink, "amqp://app:{}@127.0.0.1:1"),
    (RabbitSink, "amqp://app:{}\u2100@127.0.0.1:1"), (RabbitSink, "amqp://app:{}@[::1"), (RabbitSink, "{}@h:1"),
]  # fmt: skip


@pytest.mark.parametrize(("sink", "address"), SINKS, ids=lambda one: ascii(getattr(one, "__name__", one)))
async def test_sink_errors_do_not_contain_the_password(sink: Callable[[str], Any], address: str) -> None:
    """A broker's address has a password too, and a relay logs why the broker cannot be reached."""
    made = None
    with pytest.raises(PostbusError) as raised:
        made = sink(address.format(SECRET))
        try:
            await made.open()
        finally:
            await made.close()
    assert SECRET not in "".join(traceback.format_exception(raised.value)) + repr(made)


@pytest.mark.parametrize(
    "url",
    ["ftp://app:{}@h/", "http://app:{}", "http://app:{}/x@h/", "http://app:{}\u2100@h/", "http://app:{}@[::1/", "{}@h"],
)
def test_webhook_errors_do_not_contain_the_password(url: str) -> None:
    """A webhook's address may have a password, and observers read why a message was given up."""
    with pytest.raises(PostbusError) as raised:
        WebhookSink(url.format(SECRET))
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@contextmanager
def impostor(answer: bytes) -> Iterator[int]:
    """Answer each connection with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    conn, _ = listening.accept()
                except OSError:
                    return
                with conn:
                    conn.settimeout(0.3)
                    try:
                        conn.recv(4096)
                        conn.sendall(answer)
                        if answer:
                            conn.recv(4096)  # the password, if it is sent
                            conn.sendall(answer)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def _refusal(text: str) -> bytes:
    return _message(b"E", f"SFATAL\0VFATAL\0C28P01\0M{text}\0\0".encode())


SERVERS = {
    "says nothing that is known": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "leaves": b"",
    "refuses the password": _refusal("password authentication failed for user app"),
    "asks for it in plain text": _message(b"R", (3).to_bytes(4, "big")),
    "asks for another way": _message(b"R", (7).to_bytes(4, "big")),
    "asks for SCRAM, and lies": _message(b"R", (10).to_bytes(4, "big") + b"SCRAM-SHA-256\0\0"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_impostor_server_cannot_reveal_the_password(name: str) -> None:
    """The errors contain what the server says, and not what it is sent."""
    with impostor(SERVERS[name]) as port:
        told = in_process("topics", "list", "--dsn", f"postgresql://app:{SECRET}@127.0.0.1:{port}/db?sslmode=disable")
    assert SECRET not in told


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("bus", Bus),
        ("options of commands", Cli),
        ("patient of the doctor", lambda dsn: Target(dsn, None)),
        ("connections", lambda dsn: Connections(dsn, 1)),
        ("listener", lambda dsn: Listener(dsn, Wakers())),
        ("worker", lambda dsn: Worker(dsn, [], wakers=Wakers())),
        ("sink", PostbusSink),
        ("webhooks", lambda dsn: WebhookRunner(dsn, Bus(dsn).connect, Reach())),
    ],
)
async def test_printed_objects_do_not_contain_the_password(what: str, make: Callable[[str], Any]) -> None:
    """Tracebacks of other tools print variables."""
    made = make(f"postgresql://app:{SECRET}@127.0.0.1:1/db")
    assert SECRET not in f"{made!r}{made}"


async def test_repr_of_the_server_does_not_contain_the_password() -> None:
    """This covers the HTTP server and its attributes."""
    server = HttpServer(Bus(f"postgresql://app:{SECRET}@127.0.0.1:1/db"), ServerSettings(port=0))
    assert SECRET not in f"{server!r}{server.__dict__}"
    server._socket.close()


def _first_words(process: subprocess.Popen[bytes], *, lines: int) -> str:
    """Return the first lines that a process writes."""
    assert process.stderr is not None
    told = b""
    while told.count(b"\n") < lines and select.select([process.stderr], [], [], 20)[0]:
        part = os.read(process.stderr.fileno(), 65536)
        if not part:
            break
        told += part
    return told.decode()


@pytest.mark.parametrize("log", ["text", "json"])
def test_waiting_worker_does_not_log_the_password(log: str) -> None:
    """It logs repeatedly that the database is unavailable."""
    more = ["--json"] if log == "json" else []
    command = [*POSTBUS, "consume", "log", "--group", "g", *more]
    dsn = f"postgresql://app:{SECRET}@127.0.0.1:1/db"
    with subprocess.Popen(
        command, env=environment(POSTBUS_DSN=dsn), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        told = _first_words(process, lines=1)
        process.kill()
    assert told
    assert SECRET not in told


def test_process_titles_do_not_contain_the_password(server: EmbeddedPostgres) -> None:
    """A DSN in POSTBUS_DSN is in no command line, of neither the server nor its backends."""
    with database(server) as dsn:
        scheme, _, rest = dsn.partition("://")
        user, _, host = rest.rpartition("@")
        user = (user or "postgres").partition(":")[0]
        given = f"{scheme}://{user}:{SECRET}@{host}"
        process = subprocess.Popen(
            [*POSTBUS, "serve", "--port", "0", "--json"], env=environment(POSTBUS_DSN=given), stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["url"]
            titles = _all_titles()
        finally:
            process.kill()
            process.communicate()
    assert any("serve" in title for title in titles)
    assert not [title for title in titles if SECRET in title]


def _all_titles() -> list[str]:
    titles = []
    for process in psutil.process_iter():
        try:
            titles.append(" ".join([process.name(), *process.cmdline()]))
        except psutil.Error:
            continue
    return titles


async def test_pg_stat_activity_does_not_contain_the_password(dsn: str, conn: Any) -> None:
    """Others see the program's name and its statements there."""
    scheme, _, rest = dsn.partition("://")
    user, _, host = rest.rpartition("@")
    async with Bus.open(f"{scheme}://{(user or 'postgres').partition(':')[0]}:{SECRET}@{host}") as bus:
        await bus.send("t", 1)
        seen = await conn.fetch(
            "select application_name, query from pg_stat_activity where datname = current_database()"
        )
    assert len(seen) > 1
    assert SECRET not in str([tuple(row) for row in seen])
