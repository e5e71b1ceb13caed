-- A cursor that stands at a position.
create or replace function postbus.cursor_at("position" postbus.log_position) returns postbus.log_cursor
language plpgsql immutable as $$
declare
    _cursor postbus.log_cursor;
begin
    _cursor.seen := position;
    return _cursor;
end $$;
