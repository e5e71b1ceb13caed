"""The README's programs run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_first_program_of_the_readme_runs(dsn: str) -> None:
    """It publishes, handles its message and ends, in at most 15 lines."""
    program = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[0]
    assert len([line for line in program.splitlines() if line.strip()]) <= 15

    done = run(dsn, "-W", "error", "-c", program)

    assert (done.returncode, done.stdout) == (0, "shipping 1\n"), done.stderr


def test_readme_program_with_groups_runs(dsn: str) -> None:
    """Both groups get the message, of a topic that was created as the README says."""
    section = README.read_text("utf-8").partition("## Publish/subscribe\n")[2]
    command = re.findall(r"```console\n\$ postbus (.*?)\n```", section)[0]
    program = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]

    created = run(dsn, "-m", "postbus.cli", *command.split())
    done = run(dsn, "-W", "error", "-c", program)

    assert created.returncode == 0, created.stderr
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["counted 1", "email about 1"]


def run(dsn: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "POSTBUS_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
