"""Whole programs in the README and the guides run as they are printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from guides.pages import README, Block, blocks

PROGRAMS = [one for one in blocks("python") if one.is_program]
OUTPUT = {
    "README.md": ["shipping 1"],
    "events.md": ["license 7 is verified"],
    "getting-started.md": ["welcome, ada"],
    "groups.md": ["counted 1", "email about 1"],
    "inbox.md": ["balance: 200"],
    "pull.md": ["job 1"],
}
TESTED_ELSEWHERE = {"http_client.md"}  # with a server beside it, in tests/http_client
TOPICS = {"groups.md": "topics create orders.events --semantics PUB_SUB"}


@pytest.mark.parametrize("program", [one for one in PROGRAMS if one.page.name not in TESTED_ELSEWHERE], ids=str)
def test_program_of_a_page_runs(dsn: str, program: Block) -> None:
    """It prints what the page says, and ends."""
    page = program.page.name
    if page in TOPICS:
        assert f"$ postbus {TOPICS[page]}\n" in program.page.read_text("utf-8")
        created = run(dsn, "-m", "postbus.cli", *TOPICS[page].split())
        assert created.returncode == 0, created.stderr

    done = run(dsn, "-W", "error", "-c", program.text)

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == OUTPUT[page]


def test_each_page_has_at_most_one_program() -> None:
    """The table of outputs has one entry for each page with a program."""
    assert sorted(one.page.name for one in PROGRAMS) == sorted({*OUTPUT, *TESTED_ELSEWHERE})


def test_program_of_the_readme_is_short() -> None:
    """It has at most 15 lines that are not empty."""
    [program] = [one for one in PROGRAMS if one.page == README]
    assert len([line for line in program.text.splitlines() if line.strip()]) <= 15


def run(dsn: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "POSTBUS_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
