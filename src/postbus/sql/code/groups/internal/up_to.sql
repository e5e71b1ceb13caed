-- A cursor that ends at a place.
create or replace function postbus.up_to(cursor postbus.log_cursor, place postbus.log_place) returns postbus.log_cursor
language plpgsql immutable as $$
begin
    cursor.until := place;
    return cursor;
end $$;
