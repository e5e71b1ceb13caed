"""The program on the page about pulling runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

from api.test_readme import run

PAGE = Path(__file__).parents[2] / "docs" / "pull.md"


def test_first_program_of_the_pull_page_runs(dsn: str) -> None:
    """It sends a message, pops it, and ends."""
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]

    done = run(dsn, "-W", "error", "-c", program)

    assert (done.returncode, done.stdout) == (0, "job 1\n"), done.stderr
