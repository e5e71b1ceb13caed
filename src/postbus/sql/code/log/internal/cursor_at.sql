-- A cursor that has seen a place, and nothing more.
create or replace function postbus.cursor_at(place postbus.log_place) returns postbus.log_cursor
language plpgsql immutable as $$
declare
    _cursor postbus.log_cursor;
begin
    _cursor.seen := place;
    return _cursor;
end $$;
