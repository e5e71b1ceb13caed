"""The command `postbus`."""

from __future__ import annotations

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
    sys.exit(run(sys.argv[1:]))
