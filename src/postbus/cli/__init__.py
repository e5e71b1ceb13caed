"""The command `postbus`."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line; what the entry point calls."""
    try:
        from postbus.cli._app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print(f'error: {error.name} is not installed: pip install "postbus[cli]"', file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    sys.exit(run(sys.argv[1:]))
