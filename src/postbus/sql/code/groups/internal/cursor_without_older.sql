-- A cursor that leaves out messages below an id, of those that are there now.
create or replace function postbus.cursor_without_older(cursor postbus.log_cursor, since_id bigint) returns postbus.log_cursor
language plpgsql immutable as $$
begin
    cursor.since_id := greatest(cursor.since_id, cursor_without_older.since_id);
    cursor.since_bound := 9223372036854775807;
    return cursor;
end $$;
