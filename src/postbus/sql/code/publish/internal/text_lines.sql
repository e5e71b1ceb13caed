-- Splits text into lines, in the quickest way. Null if the bytes are no text, or if the database's encoding is not UTF8.
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
