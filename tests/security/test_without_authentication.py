"""A server without authentication: who can reach it, and what it warns of."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.helpers import POSTBUS, environment
from postbus import Bus
from postbus.embedded import EmbeddedPostgres
from postbus.errors import InvalidOption
from postbus.http_client import HttpBus
from postbus.server.settings import ConnectionLimits, ServerSettings
from security.served import Served, database, served

pytestmark = pytest.mark.attack("servers without authentication")


@pytest.fixture(scope="module")
def base(server: EmbeddedPostgres) -> Iterator[str]:
    """Create a database for several servers."""
    with database(server) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def target(base: str) -> Iterator[Served]:
    """Run an open server that one page may use."""
    with served(base, "--cors-origin", "https://app.example.org") as running:
        yield running


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "CROSS-SITE"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
        {"origin": "https://evil.example.org"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:{port}"},
        {"origin": "ftp://127.0.0.1:{port}"},
        {"origin": "127.0.0.1:{port}"},
        {"origin": "http://127.0.0.1"},
        {"origin": "http://localhost:{port}"},
        {"origin": "http://app.example.org"},
        {"origin": "https://app.example.org:8443"},
        {"origin": "https://app.example.org.evil.example"},
        {"host": "evil.example.org"},
        {"host": "127.0.0.1.evil.example.org:{port}"},
        {"host": "localhost.evil.example.org"},
        {"host": "192.0.2.1"},
        {"host": "evil.example.org", "origin": "http://evil.example.org"},
        {"host": "evil.example.org", "x-forwarded-host": "localhost", "x-forwarded-for": "127.0.0.1"},
    ],
    ids=str,
)
def test_foreign_web_page_is_refused(target: Served, headers: dict[str, str], method: str) -> None:
    """This covers another origin, scheme or port, and a foreign name that resolves to this machine."""
    given = {name: value.replace("{port}", str(target.port)) for name, value in headers.items()}
    with target.client() as http:
        body = {"name": "made-by-a-page"} if method == "POST" else None
        answer = http.request(method, "/v1/topics", headers=given, json=body)
        assert answer.status_code == 403, answer.text
        assert answer.json()["code"] == "PB441"
        assert "access-control-allow-origin" not in answer.headers
        assert "made-by-a-page" not in http.get("/v1/topics").text


def test_several_hosts_or_origins_are_refused(target: Served) -> None:
    """Neither the first nor the last of them decides."""
    for field in ("host: 127.0.0.1\r\nhost: evil.example.org", "host: evil.example.org\r\nhost: 127.0.0.1"):
        with target.connect() as conn:
            conn.sendall(f"GET /v1/topics HTTP/1.1\r\n{field}\r\nconnection: close\r\n\r\n".encode())
            assert conn.recv(1000).split()[1] == b"400"
    own = f"http://127.0.0.1:{target.port}"
    for origins in ((own, "https://evil.example.org"), ("https://evil.example.org", own)):
        fields = "".join(f"origin: {one}\r\n" for one in origins)
        with target.connect() as conn:
            request = f"GET /v1/topics HTTP/1.1\r\nhost: 127.0.0.1:{target.port}\r\n{fields}connection: close\r\n\r\n"
            conn.sendall(request.encode())
            assert conn.recv(1000).split()[1] == b"403"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin"},
        {"origin": "http://127.0.0.1:{port}", "sec-fetch-site": "same-origin"},
        {"origin": "https://app.example.org", "sec-fetch-site": "cross-site"},
        {"host": "localhost:{port}"},
        {"host": "[::1]:{port}"},
    ],
    ids=str,
)
def test_programs_own_pages_and_allowed_pages_are_served(target: Served, headers: dict[str, str]) -> None:
    """Nothing else is refused."""
    given = {name: value.replace("{port}", str(target.port)) for name, value in headers.items()}
    with target.client() as http:
        assert http.get("/v1/topics", headers=given).status_code == 200


def test_open_server_warns_that_everybody_is_an_admin(base: str, target: Served) -> None:
    """It warns at its start, people and programs."""
    [warning] = target.told["warnings"]
    assert "every account of this machine is an administrator" in warning
    assert "--unix-socket" in warning
    with subprocess.Popen(
        [*POSTBUS, "serve", "--port", "0"], env=environment(POSTBUS_DSN=base), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("serving http://127.0.0.1:")
        assert "is an administrator here" in process.stderr.readline()
        process.terminate()


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"host": "0.0.0.0"}, "there is no authentication"),
        ({"host": "::"}, "there is no authentication"),
        ({"host": "0.0.0.0", "trusted_proxies": ("10.0.0.7",)}, "there is no authentication"),
        ({"cors_origins": ("*",)}, "every web page"),
        ({"cors_origins": ("app.example.org",)}, "not the origin"),
        ({"cors_origins": ("https://app.example.org/",)}, "not the origin"),
        ({"cors_origins": ("https://user@app.example.org",)}, "not the origin"),
        ({"trusted_proxies": ("proxy.example.org",)}, "not an address"),
        ({"trusted_proxies": ("10.0.0.1/8",)}, "not an address"),
        ({"trusted_proxies": ("*",)}, "not an address"),
    ],
    ids=str,
)
def test_settings_that_would_open_the_server_are_refused(given: dict[str, Any], refusal: str) -> None:
    """The error has a remedy."""
    with pytest.raises(InvalidOption, match=refusal) as refused:
        ServerSettings(**given)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (("--unix-socket", "/" + "x" * 200), "too long"),
        (("--unix-socket", "/dev/null"), "is not a socket"),
        (("--unix-socket", "/none/such/folder/s"), "cannot listen"),
        (("--unix-socket", "/tmp/x", "--unix-socket-mode", "999"), "not the mode of a file"),
        (("--unix-socket", "/tmp/x", "--host", "0.0.0.0", "--auth"), "neither host nor port"),
    ],
    ids=str,
)
def test_impossible_socket_is_refused(options: tuple[str, ...], refusal: str, base: str) -> None:
    """A file at its path stays."""
    ended = subprocess.run(
        [*POSTBUS, "serve", *options], env=environment(POSTBUS_DSN=base), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert ended.returncode in (2, 4)
    assert refusal in " ".join(ended.stderr.split())
    assert Path("/dev/null").exists()


@pytest.mark.parametrize("bad", [{"connections": 0}, {"head_timeout": 0}, {"body_timeout": 1e9}], ids=str)
def test_limits_before_authentication_cannot_be_switched_off(bad: dict[str, Any]) -> None:
    """Zero and absurd values are refused."""
    with pytest.raises(InvalidOption):
        ConnectionLimits(**bad)


def test_public_address_without_tls_warns(base: str) -> None:
    """Tokens would go over the network in plain text."""
    with served(base, "--host", "0.0.0.0", "--auth") as public:
        [warning] = public.told["warnings"]
    assert "unencrypted" in warning
    assert "--tls-cert" in warning
    with served(base, "--auth") as private:
        assert private.told["warnings"] == []


# A socket in the file system


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder with a short path, because paths of sockets have up to 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="postbus-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def get(path: Path, target: str = "/v1/topics", **headers: str) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as http:
        return http.get(target, headers=headers)


@pytest.mark.parametrize(("options", "mode"), [((), 0o600), (("--unix-socket-mode", "660"), 0o660)])
def test_unix_socket_has_the_given_permissions(base: str, folder: Path, options: tuple[str, ...], mode: int) -> None:
    """It has them from the first moment, the server listens on no port, and the socket is removed at the end."""
    path = folder / "socket"
    with served(base, "--unix-socket", str(path), *options, port=False) as running:
        assert running.told == {"url": f"unix:{path}", "warnings": []}
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert get(path).status_code == 200
        assert get(path, **{"sec-fetch-site": "cross-site"}).status_code == 403
        assert not listens(running.pid)

        async def look(_: Bus) -> list[dict[str, Any]]:
            async with HttpBus(running.url) as http:
                return await http.admin.topics()

        assert running.use_database(look) == []
    assert not path.exists()


def listens(pid: int) -> bool:
    """Return whether a process listens on a port."""
    links = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            links.append(str(one.readlink()))
    links = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            links.append(str(one.readlink()))
    inodes = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                return True
    return False


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be somebody else")
def test_other_account_cannot_open_the_socket(base: str, folder: Path) -> None:
    """It cannot even where it may enter the folder."""
    path = folder / "socket"
    with served(base, "--unix-socket", str(path), port=False):
        program = (
            f"import os,socket;os.setgid(65534);os.setuid(65534);socket.socket(socket.AF_UNIX).connect({str(path)!r})"
        )
        ended = subprocess.run(["python3", "-c", program], capture_output=True, text=True, check=False)
    assert "PermissionError" in ended.stderr


def test_existing_file_is_not_replaced_by_the_socket(base: str, folder: Path) -> None:
    """A file, a link and a live server's socket stay; the socket of a dead server is no obstacle."""
    path, kept = folder / "socket", folder / "kept"
    kept.write_text("mine")
    path.symlink_to(kept)
    assert "is not a socket" in refused(base, path)
    assert kept.read_text() == "mine"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with served(base, "--unix-socket", str(path), port=False):
        assert "another process serves" in refused(base, path)
        assert get(path).status_code == 200


def refused(base: str, path: Path) -> str:
    command = [*POSTBUS, "serve", "--unix-socket", str(path)]
    ended = subprocess.run(
        command, env=environment(POSTBUS_DSN=base), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 4
    return " ".join(ended.stderr.split())
