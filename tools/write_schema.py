"""Writes src/postbus/sql/schema.sql: the schema as the migrations and the functions make it, for people to read."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import asyncpg

from postbus._db.migrator import code, migrate
from postbus.embedded import EmbeddedPostgres

FILE = Path(__file__).parent.parent / "src" / "postbus" / "sql" / "schema.sql"
_HEADER = """\
-- The schema of Postbus as it is now, for reading: `make schema` writes it. `postbus migrate` makes the schema from
-- migrations/ and code/, and does not run this file.
"""
_WIDTH = 120
# In the order in which the migrations made them.
_RELATIONS = """
    select c.oid, n.nspname || '.' || c.relname as name, c.relkind::text as kind, c.reloptions as options,
           coalesce(obj_description(c.oid, 'pg_class'), obj_description(c.reltype, 'pg_type')) as comment,
           pg_get_partkeydef(c.oid) as partition_by
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = 'postbus' and c.relkind in ('r', 'p', 'c', 'S') and not c.relispartition
       and not exists (select from pg_depend d
                        where d.objid = c.oid and d.deptype = 'i' and d.refclassid = 'pg_class'::regclass)
     order by c.oid
"""
_COLUMNS = """
    select quote_ident(a.attname) as name, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as is_needed,
           a.attidentity <> '' as is_identity, pg_get_expr(d.adbin, d.adrelid) as default_value,
           col_description(a.attrelid, a.attnum) as comment
      from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_CONSTRAINTS = """
    select pg_get_constraintdef(c.oid) from pg_constraint c where c.conrelid = $1 and c.contype in ('p', 'u', 'f', 'c')
     order by c.contype = 'p' desc, c.conname
"""
_INDEXES = """
    select pg_get_indexdef(i.indexrelid) from pg_index i
     where i.indrelid = $1 and not exists (select from pg_constraint c where c.conindid = i.indexrelid)
     order by i.indexrelid::regclass::text
"""
_SEQUENCE = "select increment_by, cache_size from pg_sequences where schemaname || '.' || sequencename = $1"
_FUNCTIONS = """
    select n.nspname || '.' || f.proname as name, pg_get_function_arguments(f.oid) as arguments,
           pg_get_function_result(f.oid) as result
      from pg_proc f join pg_namespace n on n.oid = f.pronamespace
     where n.nspname in ('postbus', 'postbus_outbox', 'postbus_topics') order by 1, 2
"""
_VIEWS = """
    select n.nspname || '.' || c.relname as name,
           array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) order by a.attnum) as columns
      from pg_class c
      join pg_namespace n on n.oid = c.relnamespace
      join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
     where n.nspname in ('postbus', 'postbus_outbox', 'postbus_topics') and c.relkind = 'v' group by 1
"""
_KEYWORD = re.compile(r"\b[A-Z]{2,}\b")
_CREATED = re.compile(r"^create or replace (function|view) (\w+\.\w+)", re.MULTILINE)


async def schema_text(conn: Any) -> str:
    """The schema of a database, as text."""
    async with conn.transaction():
        await conn.execute("set local search_path = pg_catalog")
        parts = [_HEADER]
        for relation in await conn.fetch(_RELATIONS):
            parts.append(await _relation(conn, relation))
        parts += await _code(conn)
    return "\n".join(parts)


async def _relation(conn: Any, relation: Any) -> str:
    lines = _remark(relation["comment"])
    name, kind = relation["name"], relation["kind"]
    if kind == "S":
        row = await conn.fetchrow(_SEQUENCE, name)
        return "\n".join([*lines, f"create sequence {name} increment by {row[0]} cache {row[1]};", ""])
    body = [(_column(column), column["comment"] or "") for column in await conn.fetch(_COLUMNS, relation["oid"])]
    body += [(_lower(row[0]), "") for row in await conn.fetch(_CONSTRAINTS, relation["oid"])]
    lines.append(f"create {'type' if kind == 'c' else 'table'} {name} {'as ' if kind == 'c' else ''}(")
    for index, (definition, comment) in enumerate(body):
        lines += [f"    -- {line}" for line in _wrapped(comment, _WIDTH - 7)]
        lines.append(f"    {definition}{',' if index < len(body) - 1 else ''}")
    end = ")"
    if relation["partition_by"]:
        end += f" partition by {_lower(relation['partition_by'])}"
    if relation["options"]:
        end += f" with ({', '.join(relation['options'])})"
    lines.append(end + ";")
    lines += [f"{_lower(row[0])};" for row in await conn.fetch(_INDEXES, relation["oid"])]
    return "\n".join([*lines, ""])


def _column(column: Any) -> str:
    text = f"{column['name']} {column['type']}"
    if column["is_identity"]:
        return f"{text} generated always as identity"
    if column["default_value"] is not None:
        text += f" default {_lower(column['default_value'])}"
    return text + (" not null" if column["is_needed"] else "")


async def _code(conn: Any) -> list[str]:
    """Functions that roles may call, and views, by subsystem."""
    functions: dict[str, list[Any]] = {}
    for row in await conn.fetch(_FUNCTIONS):
        functions.setdefault(row["name"], []).append(row)
    views = {row["name"]: row["columns"] for row in await conn.fetch(_VIEWS)}
    parts: list[str] = []
    told: set[str] = set()
    subsystem = ""
    for path, text in code():
        created = _CREATED.search(text)
        if created is None or "/internal/" in path or created[2] in told:
            continue
        told.add(created[2])
        if subsystem != path.rpartition("/")[0]:
            subsystem = path.rpartition("/")[0]
            parts.append(f"-- {subsystem}: functions and views\n")
        lines = _remark(" ".join(_first_paragraph(text)))
        if created[1] == "view":
            lines.append(f"create view {created[2]} (\n    " + ",\n    ".join(views[created[2]]) + "\n);")
        else:
            for function in functions[created[2]]:
                lines += _signature(function)
        parts.append("\n".join([*lines, ""]))
    return parts


def _signature(function: Any) -> list[str]:
    arguments = _split(_lower(function["arguments"]))
    result = _lower(function["result"] or "void")
    line = f"create function {function['name']}({', '.join(arguments)}) returns {result};"
    if len(line) <= _WIDTH:
        return [line]
    if result.startswith("table("):
        result = "table (" + "".join(f"\n    {one}," for one in _split(result[6:-1]))[:-1] + "\n)"
    given = "".join(f"\n    {one}," for one in arguments)[:-1] + ("\n" if arguments else "")
    return [f"create function {function['name']}({given}) returns {result};"]


def _split(text: str) -> list[str]:
    return text.split(", ") if text else []


def _lower(text: str) -> str:
    """Keywords in lower case; texts in quotes stay as they are."""
    parts = text.split("'")
    parts[::2] = [_KEYWORD.sub(lambda word: word[0].lower(), part) for part in parts[::2]]
    return "'".join(parts)


def _first_paragraph(text: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        if not line.startswith("-- "):
            break
        lines.append(line.removeprefix("-- "))
    return lines


def _remark(text: str | None) -> list[str]:
    return [f"-- {line}" for line in _wrapped(text or "", _WIDTH - 3)]


def _wrapped(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the server may run as another account
        with EmbeddedPostgres.start(Path(folder) / "data") as server:
            asyncio.run(_write(server.dsn()))
    sys.stdout.write(f"wrote {FILE}\n")


async def _write(dsn: str) -> None:
    conn: Any = await asyncpg.connect(dsn)
    try:
        await migrate(conn)
        FILE.write_text(await schema_text(conn), "utf-8")
    finally:
        await conn.close()


if __name__ == "__main__":
    main()
