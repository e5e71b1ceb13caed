"""Lines for people, in which a terminal finds nothing to obey."""

from __future__ import annotations

import sys
from typing import TextIO

from postbus._runtime.visible_text import visible


def say(text: object = "", *, to: TextIO | None = None, flush: bool = True) -> None:
    """Write one line. Characters that a terminal would obey are shown as escapes."""
    print(visible(str(text)), file=sys.stdout if to is None else to, flush=flush)


def say_block(lines: list[str]) -> None:
    """Write lines of somebody else's text, indented, so that none of them passes for a line of ours."""
    for line in lines:
        say(f"  {line}" if line else "")
