"""Check the pages and the docstrings: lengths, links, and how docstrings begin."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SHORT_PAGES = ("README.md", "ARCHITECTURE.md")
MOST_LINES = 150
CODE = ("src", "tools", "faults", "bench", "tests", "examples")
SKIPPED = {"build", "dist", "node_modules"}
VAGUE = re.compile(r"(Who|Whom|Whose|Whoever|What|That|How it|How that|From when)\b")

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


class Finding(NamedTuple):
    """One thing to mend, and where it is."""

    path: Path
    line: int
    problem: str


def pages_in(root: Path) -> Iterator[Path]:
    """All pages below a folder, but those of other projects and those that a build has made."""
    for path in sorted(root.rglob("*.md")):
        parts = path.relative_to(root).parts
        if not any(part in SKIPPED or part.startswith(".") for part in parts):
            yield path


def lengths(root: Path) -> Iterator[Finding]:
    """Find pages that are meant to be short and are not."""
    for name in SHORT_PAGES:
        path = root / name
        count = len(path.read_text("utf-8").splitlines()) if path.exists() else 0
        if count > MOST_LINES:
            yield Finding(path, MOST_LINES + 1, f"has {count} lines; at most {MOST_LINES}: move details into docs/")


def links(pages: Iterable[Path]) -> Iterator[Finding]:
    """Find relative links to files and headings that do not exist."""
    for page in pages:
        text = _without_code(page)
        for match in _LINK.finditer(text):
            link = match[1]
            if "://" in link or link.startswith("mailto:"):
                continue
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            line = text.count("\n", 0, match.start()) + 1
            if not target.exists():
                yield Finding(page, line, f"links to {link}, which does not exist")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.resolve()):
                yield Finding(page, line, f"links to {link}, and {target.name} has no such heading")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names that headings of a page have in links."""
    found: list[str] = []
    for heading in _HEADING.findall(_without_code(page, keep_inline=True)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return frozenset(found)


def _without_code(page: Path, *, keep_inline: bool = False) -> str:
    """The text of a page, with blanks for code; each line stays where it is."""
    text = _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page.read_text("utf-8"))
    return text if keep_inline else _INLINE_CODE.sub(lambda match: " " * len(match[0]), text)


def docstrings(files: Iterable[Path]) -> Iterator[Finding]:
    """Find docstrings, also those of attributes, that begin with a relative clause instead of a subject or a verb."""
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
                if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                    continue
                if (first := VAGUE.match(str(statement.value.value).lstrip())) is not None:
                    problem = f"has a docstring that begins with {first[0]!r}: name the subject"
                    yield Finding(path, statement.lineno, problem)


def findings(root: Path) -> Iterator[Finding]:
    """Everything to mend below a folder."""
    yield from lengths(root)
    yield from links(pages_in(root))
    yield from docstrings(path for name in CODE for path in sorted((root / name).rglob("*.py")))


def main(root: Path = ROOT) -> int:
    """Print what is to be mended; the exit code is 1 if there is anything."""
    found = list(findings(root))
    for path, line, problem in found:
        print(f"{path.relative_to(root)}:{line}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
