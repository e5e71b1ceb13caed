-- A text as one line of at most 200 characters. ? stands for each character that a terminal would obey, or that changes the
-- direction of writing.
create or replace function postbus.one_line(said text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp as $$
begin
    said := regexp_replace(left(said, 200), '[\x01-\x1f\x7f]', '?', 'g');
    if getdatabaseencoding() = 'UTF8' then      -- in other encodings these numbers mean other characters, or none
        said := regexp_replace(said, '[\u0080-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]', '?', 'g');
    end if;
    return said;
end $$;
