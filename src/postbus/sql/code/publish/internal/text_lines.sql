-- Splits text into lines, in the quickest way. Null if it is no text, or if the database cannot tell.
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
