-- Takes lines apart that are text, in the quickest way. Null where they are not, or where the database has no way to tell.
create or replace function postbus.text_lines(lines bytea) returns text[]
language plpgsql immutable strict as $$
begin
    if getdatabaseencoding() = 'UTF8' then
        return string_to_array(convert_from(lines, 'UTF8'), E'\n');
    end if;
    return null;
exception
    when character_not_in_repertoire then
        return null;
end $$;
