"""Look-alikes: what an attacker who may create in a schema of the search path plants there.

Each function, operator, type and catalog that Postbus' sources name has one, of the same signature. All of them fail
with the word `fooled`, so that every call is noticed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import postbus

_SOURCES = Path(postbus.__file__).parent
_TYPES = ("text", "jsonb", "bytea", "uuid", "timestamptz", "name", "int8", "int4", "bool", "oid", "regclass", "pg_lsn")

_FUNCTIONS = """
do $plant$
declare
    _one  record;
    _make pg_catalog.text := 'create or replace function public.%%s(%%s) returns %%s language plpgsql as '
                             '$f$ begin raise exception %%L; end $f$';
begin
    for _one in
        select f.proname, pg_catalog.pg_get_function_identity_arguments(f.oid) as arguments,
               pg_catalog.pg_get_function_result(f.oid) as result
          from pg_catalog.pg_proc f
         where f.pronamespace = 'pg_catalog'::pg_catalog.regnamespace and f.prokind = 'f'
           and f.proname = any ($names$%s$names$)
    loop
        begin
            execute pg_catalog.format(_make, pg_catalog.quote_ident(_one.proname), _one.arguments, _one.result,
                                      'fooled: function ' || _one.proname);
        exception when others then
            null;       -- of pseudo-types, as only C has them
        end;
    end loop;
    for _one in
        select o.oid, o.oprname, o.oprleft::pg_catalog.regtype as l, o.oprright::pg_catalog.regtype as r,
               o.oprresult::pg_catalog.regtype as result
          from pg_catalog.pg_operator o
         where o.oprnamespace = 'pg_catalog'::pg_catalog.regnamespace and o.oprleft <> 0
           and o.oprname in ('=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '||', '~', '!~', '->', '->>', '?',
                             '&&', '@>', '~~')
    loop
        begin
            execute pg_catalog.format(_make, 'operator_' || _one.oid, pg_catalog.concat_ws(', ', _one.l, _one.r),
                                      _one.result, 'fooled: operator ' || _one.oprname);
            execute pg_catalog.format(
                'create operator public.%%s (leftarg = %%s, rightarg = %%s, function = public.operator_%%s)',
                _one.oprname, _one.l, _one.r, _one.oid);
        exception when others then
            null;
        end;
    end loop;
    for _one in
        select c.relname from pg_catalog.pg_class c
         where c.relnamespace = 'pg_catalog'::pg_catalog.regnamespace and c.relkind in ('r', 'v')
           and c.relname = any ($names$%s$names$)
    loop
        execute pg_catalog.format('create view public.%%I as select f.* from public.fooled(%%L) as f',
                                  _one.relname, _one.relname);
    end loop;
end $plant$
"""
_FOOLED = """
create function public.fooled(what pg_catalog.text) returns setof pg_catalog.pg_class language plpgsql as
$f$ begin raise exception 'fooled: %', what; end $f$
"""
# These fit calls better than the functions they look like: they win even where pg_catalog comes first.
_BETTER = """
    format(text, text); format(text, name); format(text, bigint); format(text, text, text); concat_ws(text, text, text);
    jsonb_build_object(text, text); quote_literal(integer); num_nonnulls(text, text); concat(text, text);
    to_jsonb(text); array_agg(text); count(bigint); hashtext(name); length(name); left(name, integer);
    set_config(text, name, boolean); pg_notify(text, name); unnest(bigint[]); string_to_array(name, text)
"""
_COUNT = """
    select (select pg_catalog.count(*) from pg_catalog.pg_proc where pronamespace = 'public'::pg_catalog.regnamespace)
         + (select pg_catalog.count(*) from pg_catalog.pg_class where relnamespace = 'public'::pg_catalog.regnamespace)
"""


def named_in_sources() -> set[str]:
    """Return all words of the sources: every function of PostgreSQL among them is planted."""
    files = [*_SOURCES.rglob("*.sql"), *_SOURCES.rglob("*.py")]
    return {word for file in files for word in re.findall(r"[a-z][a-z0-9_]{2,}", file.read_text("utf-8"))}


def plant(conn: Any) -> int:
    """Plant all look-alikes in the schema public, by a connection of psycopg in autocommit. Returns their number."""
    names = "{" + ",".join(sorted(named_in_sources())) + "}"
    conn.execute(_FOOLED)
    conn.execute((_FUNCTIONS % (names, names)).encode())
    for signature in _BETTER.split(";"):
        name = signature.strip().partition("(")[0]
        body = f"begin raise exception 'fooled: function {name}'; end"
        conn.execute(
            f"create or replace function public.{signature.strip()} returns text language plpgsql as $f$ {body} $f$"
        )
    for name in _TYPES:
        conn.execute(f"create domain public.{name} as pg_catalog.{name} check (pg_catalog.random() < -1)")
    return int(conn.execute(_COUNT).fetchone()[0])
