-- A cursor that ends at a position.
create or replace function postbus.cursor_up_to(cursor postbus.log_cursor, "position" postbus.log_position) returns postbus.log_cursor
language plpgsql immutable as $$
begin
    cursor.until := position;
    return cursor;
end $$;
