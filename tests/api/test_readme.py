"""The README's first program runs as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_first_program_runs(dsn: str) -> None:
    """It publishes, handles its message, and ends; it has no more than 15 lines."""
    program = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[0]
    assert len([line for line in program.splitlines() if line.strip()]) <= 15

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "POSTBUS_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "shipping 1\n"), done.stderr
