"""The rules that SQL files keep: see CONTRIBUTING.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

CODE = Path(__file__).parent.parent / "src" / "postbus" / "sql" / "code"
KEYWORDS = re.compile(
    r"\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|CREATE|BEGIN|END|RETURNS|LANGUAGE|DECLARE|PERFORM|JOIN)\b"
)
_NOT_ASCII = "has characters that are not in every encoding of a database"
CREATED = re.compile(r"^create or replace (function|view) postbus(?:_outbox)?\.(\w+)", re.MULTILINE)


def problems_of(path: Path) -> Iterator[str]:
    """What is wrong with one file."""
    text = path.read_text("utf-8")
    statements = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    if not text.isascii():
        yield _NOT_ASCII
    if not text.startswith("-- "):
        yield "has no header that says what it does"
    if shouted := KEYWORDS.search(statements):
        yield f"has a keyword in upper case: {shouted[0]}"
    created = CREATED.findall(text)
    if path.parent == CODE:
        return
    if len(created) != 1:
        yield f"creates {len(created)} functions or views instead of one"
        return
    kind, name = created[0]
    if not path.stem.startswith(name):
        yield f"is not named after {name}"
    if "security definer" in statements and "set search_path = pg_catalog, pg_temp" not in text:
        yield "does not pin the search path: set search_path = pg_catalog, pg_temp"
    writes = re.search(r"\b(insert into|update|delete from)\s+postbus\.", statements)
    if kind == "function" and writes and "-- Writes:" not in text:
        yield "writes tables and has no line '-- Writes:' in its header"
    if re.search(r"for (no key )?update|for (key )?share", statements) and "Locks:" not in text:
        yield "locks rows and does not say so in its header"
    if "execute " in statements and "format(" not in statements and "_sql(" not in statements:
        yield "has dynamic SQL without format()"
    if any(len(line) > 150 for line in text.splitlines()):
        yield "has a line of more than 150 characters"


def main() -> int:
    listed = [
        line for line in (CODE / "contents.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
    existing = {str(path.relative_to(CODE)) for path in CODE.rglob("*.sql")}
    problems = [f"{name}: not in contents.txt" for name in sorted(existing - set(listed))]
    problems += [f"{name}: in contents.txt, but not there" for name in sorted(set(listed) - existing)]
    problems += [f"{name}: {problem}" for name in listed if name in existing for problem in problems_of(CODE / name)]
    migrations = (CODE.parent / "migrations").glob("*.sql")
    problems += [f"{file.name}: {_NOT_ASCII}" for file in migrations if not file.read_text("utf-8").isascii()]
    print("\n".join(problems) or "SQL rules: ok")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
