"""The rules that SQL files keep: see CONTRIBUTING.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

CODE = Path(__file__).parent.parent / "src" / "postbus" / "sql" / "code"
GRANTS = CODE / "grants.sql"
# Folders whose functions and views make up a schema of their own, granted as a whole.
WITH_SCHEMA = {"postbus_outbox", "postbus_topics"}
KEYWORDS = re.compile(
    r"\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|CREATE|BEGIN|END|RETURNS|LANGUAGE|DECLARE|PERFORM|JOIN)\b"
)
_NOT_ASCII = "has characters that are not in every encoding of a database"
PARAMETER = re.compile(r"^\s*(?!out\b)(\w+)\s+timestamptz\b", re.MULTILINE)
# Times that callers may give: when a message is due or was published, where a group starts, what is chosen by age.
TIMES = {
    "event_id": {"published_at"},
    "import_messages": {"published_ats"},
    "import_deferred": {"published_ats"},
    "publish": {"deliver_at"},
    "publish_many": {"deliver_ats"},
    "purge_dead_letters": {"died_before"},
    "redrive": {"died_after", "died_before"},
    "retained": {"since", "until"},
    "return_expired": {"since"},
    "seek": {"start_at"},
    "subscribe": {"start_at"},
    "subscribe_scope": {"start_at"},
}
LONGEST = 130
CREATED = re.compile(r"^create or replace (function|view) postbus(?:_outbox|_topics)?\.(\w+)", re.MULTILINE)


def problems_of(path: Path) -> Iterator[str]:
    """Find problems of one file."""
    text = path.read_text("utf-8")
    statements = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    if not text.isascii():
        yield _NOT_ASCII
    if not text.startswith("-- "):
        yield "has no header that says what it does"
    if shouted := KEYWORDS.search(statements):
        yield f"has a keyword in upper case: {shouted[0]}"
    created = CREATED.findall(text)
    if path == GRANTS:
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
    if len(text.splitlines()) > LONGEST:
        yield f"has more than {LONGEST} lines: split it"
    if any(len(line) > 150 for line in text.splitlines()):
        yield "has a line of more than 150 characters"


def problems_of_place(named: set[str], path: Path) -> Iterator[str]:
    """Whether a file stands where it belongs: what roles may call or read in its subsystem, all else in `internal`."""
    created = CREATED.findall(path.read_text("utf-8"))
    if path == GRANTS or len(created) != 1 or path.parent.name in WITH_SCHEMA:
        return
    is_internal = path.parent.name == "internal"
    if is_internal == (created[0][1] in named):
        yield "is granted to roles: it is not internal" if is_internal else "is granted to no role: put it in internal/"


def problems_of_grants(named: set[str], path: Path) -> Iterator[str]:
    """Find parameters for the current time in functions that roles may call: only internal ones take the time."""
    found = re.search(
        r"^create or replace function postbus\.(\w+)\s*\((.*?)\)\s*(?:returns|language)",
        path.read_text("utf-8"),
        re.M | re.S,
    )
    if found is None or found[1] not in named:
        return
    name, parameters = found.groups()
    given = set(PARAMETER.findall(re.sub(r"[,(]", "\n", parameters)))
    if name.endswith("_as_of") or "as_of" in given:
        yield "takes the time as a parameter, and roles may call it"
    elif unknown := given - TIMES.get(name, set()):
        yield f"takes a time from callers: {', '.join(sorted(unknown))}. If it does not stand for now, name it in TIMES"


def main() -> int:
    listed = [
        line for line in (CODE / "contents.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")
    ]
    existing = {str(path.relative_to(CODE)) for path in CODE.rglob("*.sql")}
    problems = [f"{name}: not in contents.txt" for name in sorted(existing - set(listed))]
    problems += [f"{name}: in contents.txt, but not there" for name in sorted(set(listed) - existing)]
    problems += [f"{name}: {problem}" for name in listed if name in existing for problem in problems_of(CODE / name)]
    granted = set(re.findall(r"\w+", GRANTS.read_text("utf-8").partition("for _grant in")[2]))
    problems += [f"{name}: {problem}" for name in listed for problem in problems_of_grants(granted, CODE / name)]
    problems += [f"{name}: {problem}" for name in listed for problem in problems_of_place(granted, CODE / name)]
    migrations = (CODE.parent / "migrations").glob("*.sql")
    problems += [f"{file.name}: {_NOT_ASCII}" for file in migrations if not file.read_text("utf-8").isascii()]
    print("\n".join(problems) or "SQL rules: ok")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
