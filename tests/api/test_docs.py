"""Whole programs in the documentation run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.test_readme import run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "said"), [("inbox.md", "balance: 200\n"), ("events.md", "license 7 is verified\n")])
def test_first_program_of_a_page_prints_what_the_page_says(dsn: str, page: str, said: str) -> None:
    """The program runs without warnings, and ends."""
    program = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)[0]

    done = run(dsn, "-W", "error", "-c", program)

    assert (done.returncode, done.stdout) == (0, said), done.stderr
