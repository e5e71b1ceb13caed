"""The command `postbus`."""

from __future__ import annotations

import io
import os
import sys
from typing import Literal, TextIO


def main() -> None:
    """Run the command line. The entry point calls this."""
    try:
        from postbus.cli._app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print(f'error: {error.name} is not installed: pip install "postbus[cli]"', file=sys.stderr)
        sys.exit(2)
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 must not make commands fail
    sys.exit(run(sys.argv[1:]))


def _open_closed() -> None:
    """Open streams that our caller has closed, empty or to nowhere, so that no connection gets their numbers."""
    sys.stdin = sys.stdin or _nothing("r")
    sys.stdout = sys.stdout or _nothing("w")
    sys.stderr = sys.stderr or _nothing("w")


def _nothing(mode: Literal["r", "w"]) -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_RDWR), mode)
