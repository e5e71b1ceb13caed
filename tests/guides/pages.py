"""The README and the guides, and the code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = (README, *sorted(DOCS.glob("*.md")))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of code on a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def is_program(self) -> bool:
        """Whether it runs by itself."""
        return self.language == "python" and "asyncio.run(" in self.text


def blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in these languages."""
    return [
        Block(page, text.count("\n", 0, match.start(2)) + 1, match[1], match[2])
        for page in PAGES
        for text in [page.read_text("utf-8")]
        for match in _BLOCK.finditer(text)
        if match[1] in languages
    ]
