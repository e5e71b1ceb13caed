"""The pages of the server: what browsers are told, and what the pages load."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from postbus.embedded import EmbeddedPostgres
from security.served import Served, database, served

pytestmark = pytest.mark.attack("pages and headers for browsers")
_CSP = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@pytest.fixture(scope="module")
def target(server: EmbeddedPostgres) -> Iterator[Served]:
    """Run a server with authentication, whose pages are open."""
    with database(server) as dsn, served(dsn, "--auth") as running:
        yield running


@pytest.mark.parametrize(
    "path",
    ["/openapi", "/openapi/", "/openapi/swagger", "/openapi/redoc", "/openapi/elements", "/openapi/rapidoc",
     "/openapi/scalar", "/openapi/openapi.json", "/openapi/openapi.yaml", "/openapi/openapi.yml", "/openapi/none",
     "/openapi/oauth2-redirect.html", "/openapi%2fswagger", "/openapi//swagger", "/schema", "/schema/swagger",
     "/docs/", "/docs/none", "/docs/../openapi", "/docs/style.css/..%2f..%2fetc%2fpasswd", "/docs/%2e%2e/settings.py",
     "/static/x", "/favicon.ico"],
)  # fmt: skip
def test_there_are_no_other_pages(target: Served, path: str) -> None:
    """The framework's pages would load scripts from elsewhere. Errors are JSON."""
    with target.client() as http:
        answer = http.get(path)
    if answer.status_code == 200:
        assert path == "/docs/"
    else:
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


def test_openapi_description_is_served(target: Served) -> None:
    """Programs read it."""
    with target.client() as http:
        described = http.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1.")
    assert "/v1/topics" in described["paths"]
    assert not any(path.startswith(("/docs", "/openapi")) for path in described["paths"])


class Links(HTMLParser):
    """Collects the references of a page, and what could run in it."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given: dict[str, Any] = dict(attrs)
        self.attributes |= given.keys()
        if "id" in given:
            self.ids.append(given["id"])
        if "href" in given:
            (self.targets if given["href"].startswith("#") else self.loaded).add(given["href"])
        if "src" in given:
            self.loaded.add(given["src"])


def test_page_loads_nothing_from_elsewhere(target: Served) -> None:
    """It has one stylesheet of the same server, and no scripts, images, forms or inline styles."""
    with target.client() as http:
        page = http.get("/docs")
        style = http.get("/docs/style.css")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    links = Links()
    links.feed(page.text)
    assert links.loaded == {"/docs/style.css", "/openapi.json"}
    assert not links.tags & {
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "form",
        "input",
        "style",
        "svg",
        "base",
        "link:",
    }
    assert not [one for one in links.attributes if one.startswith("on") or one == "style"]
    assert not re.search(r"@import|url\(|https?:|expression", style.text)
    assert len(links.ids) == len(set(links.ids))
    assert links.targets <= {f"#{one}" for one in links.ids}


def test_page_describes_every_route(target: Served) -> None:
    """People can read everything that programs can."""
    with target.client() as http:
        page = http.get("/docs").text
        described = http.get("/openapi.json").json()
    links = Links()
    links.feed(page)
    operations = [one["operationId"] for path in described["paths"].values() for one in path.values()]
    assert len(operations) > 40
    assert set(operations) <= set(links.ids)


def test_page_escapes_its_content() -> None:
    """It does so although all content comes from the program itself."""
    from postbus.server.reference import render

    evil = "<script>alert(1)</script>\"'&"
    schema = {"$ref": "#/components/schemas/shape"}
    answers = {
        "200": {"description": evil, "content": {"a/b": {"schema": {"enum": [evil]}}}},
        "400": {"description": evil},
    }
    operation = {
        "operationId": f"id{evil}",
        "summary": evil,
        "description": evil,
        "tags": [evil],
        "x-postbus-roles": [evil],
        "parameters": [{"name": evil, "in": "query", "description": evil, "schema": {"default": evil}}],
        "requestBody": {"content": {"application/json": {"schema": schema}}},
        "responses": answers,
    }
    field = {"type": "string", "description": evil}
    shape = {"description": evil, "examples": [{"a": evil}], "properties": {evil: field}}
    document = {
        "info": {"title": evil, "version": evil, "description": evil},
        "paths": {f"/v1/{evil}": {"post": operation}},
        "components": {"schemas": {"shape": shape}},
    }
    assert "<script" not in render(document)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/docs", 200), ("/docs/style.css", 200), ("/openapi.json", 200), ("/livez", 200), ("/readyz", 200),
     ("/v1/topics", 401), ("/none", 404), ("/v1/topics/%00", 401)],
)  # fmt: skip
def test_every_answer_has_security_headers(target: Served, path: str, status: int) -> None:
    """They forbid type guessing, framing and scripts, in errors too."""
    with target.client() as http:
        answer = http.get(path)
    assert answer.status_code == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == _CSP
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "strict-transport-security" not in answer.headers
    assert "server" not in answer.headers


def test_refusals_of_the_connection_have_security_headers(target: Served) -> None:
    """This is the answer before a request is understood."""
    with target.connect() as conn:
        conn.sendall(b"nonsense\r\n\r\n")
        answer = conn.recv(5000)
    assert b"x-content-type-options: nosniff" in answer
    assert _CSP.encode() in answer


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls_answers_have_hsts(target: Served, tmp_path: Path) -> None:
    """A connection that does not begin with TLS is closed in time."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    with served(target.dsn, "--auth", "--tls-cert", str(cert), "--tls-key", str(key)) as secure:
        assert secure.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=secure.url, verify=context, trust_env=False) as http:
            answer = http.get("/docs")
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        with secure.connect() as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            conn.settimeout(5)
            assert not conn.recv(1000).startswith(b"HTTP/1.1 200")
