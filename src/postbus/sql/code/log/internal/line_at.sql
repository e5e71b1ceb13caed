-- One line of a payload that was published as lines, counted from 1: see publish_lines. Quicker than splitting all of it.
create or replace function postbus.line_at(lines bytea, n integer) returns bytea
language plpgsql immutable strict as $$
begin
    if getdatabaseencoding() = 'UTF8' then
        return convert_to(split_part(convert_from(lines, 'UTF8'), E'\n', n), 'UTF8');
    end if;
    return (postbus.lines_of(lines, n))[n];
exception
    when character_not_in_repertoire then
        return (postbus.lines_of(lines, n))[n];
end $$;
