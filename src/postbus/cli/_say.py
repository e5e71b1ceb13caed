"""Lines for people. Nothing in this package prints in another way, so that no text reaches a terminal as it came."""

from __future__ import annotations

import sys
from typing import TextIO

from postbus._runtime.visible_text import visible


def say(text: object = "", *, to: TextIO | None = None, flush: bool = True) -> None:
    """Write one line. What a terminal would obey in it is shown instead."""
    print(visible(str(text)), file=sys.stdout if to is None else to, flush=flush)


def say_block(lines: list[str], *, to: TextIO | None = None) -> None:
    """Write lines of somebody else's text, indented: none of them passes for a line of ours."""
    for line in lines:
        say(f"  {line}" if line else "", to=to)
