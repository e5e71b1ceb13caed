-- The first `count` lines of a payload. If it has fewer, the rest are empty.
--
-- Works on escaped text, in which each byte stands for itself or is written in ASCII, whatever the encoding of the database is.
create or replace function postbus.lines_of(lines bytea, count integer) returns bytea[]
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp as $$
declare
    _lines bytea[] := array(select decode(one.line, 'escape')
                              from unnest(string_to_array(encode(lines, 'escape'), E'\n')) with ordinality as one (line, n)
                             where one.n <= count order by one.n);
begin
    return _lines || case when cardinality(_lines) < count then array_fill(''::bytea, array[count - cardinality(_lines)]) end;
end $$;
