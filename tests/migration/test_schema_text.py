"""The file that shows the schema is current."""

from __future__ import annotations

from typing import Any

from tools.write_schema import FILE, schema_text


async def test_schema_file_is_current(conn: Any) -> None:
    """If this fails, run `make schema`."""
    assert FILE.read_text("utf-8") == await schema_text(conn), "run: make schema"


async def test_every_table_and_column_has_a_comment(conn: Any) -> None:
    """Comments in the database say what each table, type and column holds."""
    missing = await conn.fetch(
        """
        select c.relname || coalesce('.' || a.attname, '') as name
          from pg_class c
          left join lateral (select null::name as attname, 0::smallint as attnum
                             union all
                             select a.attname, a.attnum from pg_attribute a
                              where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as a on true
         where c.relnamespace = 'postbus'::regnamespace and c.relkind in ('r', 'p', 'c') and not c.relispartition
           and case when a.attnum > 0 then col_description(c.oid, a.attnum)
                    when c.relkind = 'c' then obj_description(c.reltype, 'pg_type')
                    else obj_description(c.oid, 'pg_class') end is null
        """
    )
    assert [row["name"] for row in missing] == []
