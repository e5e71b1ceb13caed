"""The check of the lock file for known vulnerabilities reports what it knows, and that it knows nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tools.audit_dependencies import LOCK, main, pinned

AWAY = "http://127.0.0.1:1"


@contextmanager
def answering(answers: dict[str, Any]) -> Iterator[str]:
    """Run a server that answers each path with a JSON document, and others with 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            told = answers.get(self.path)
            self.send_response(404 if told is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def lock(tmp_path: Path) -> str:
    path = tmp_path / "requirements.lock"
    path.write_text("one==1.0 \\\n    --hash=sha256:00\ntwo==2.0 ; python_version < '3.12' \\\n    --hash=sha256:00\n")
    return str(path)


def test_lock_file_is_read() -> None:
    """Each of its dependencies is checked."""
    text = LOCK.read_text("utf-8")
    assert len(pinned(text)) == text.count("==") - text.count(" == ") > 50


def test_unreachable_sources_are_no_good_news(lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code differs from that of a check that found nothing."""
    assert main(["--lock", lock, "--osv", AWAY, "--index", AWAY]) == 3
    assert "NOT CHECKED" in capsys.readouterr().err


@pytest.mark.parametrize(("vulns", "code"), [([], 0), ([{"id": "CVE-1"}, {"id": "GHSA-2"}], 1)])
def test_osv_is_asked_first(lock: str, vulns: Any, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the package and the known vulnerabilities."""
    with answering({"/v1/querybatch": {"results": [{}, {"vulns": vulns} if vulns else {}]}}) as url:
        assert main(["--lock", lock, "--osv", url, "--index", AWAY]) == code
    assert ("two 2.0: CVE-1, GHSA-2" in capsys.readouterr().out) is bool(vulns)


def test_index_is_asked_if_osv_is_unavailable(lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Withdrawn reports do not count."""
    answers = {
        "/pypi/one/1.0/json": {"vulnerabilities": [{"id": "old", "withdrawn": "2020-01-01"}]},
        "/pypi/two/2.0/json": {"vulnerabilities": [{"id": "CVE-1", "withdrawn": None}]},
    }
    with answering(answers) as url:
        assert main(["--lock", lock, "--osv", AWAY, "--index", url]) == 1
    assert "two 2.0: CVE-1\n" in capsys.readouterr().out


def test_index_without_vulnerability_data_is_no_good_news(lock: str) -> None:
    """A mirror may have the packages, and not their reports."""
    answers: dict[str, Any] = {"/pypi/one/1.0/json": {}, "/pypi/two/2.0/json": {"vulnerabilities": []}}
    with answering(answers) as url:
        assert main(["--lock", lock, "--osv", AWAY, "--index", url]) == 3
    with answering({"/v1/querybatch": {"results": [{}]}}) as url:
        assert main(["--lock", lock, "--osv", url, "--index", AWAY]) == 3
