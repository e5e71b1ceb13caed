-- The cursor with which a group starts in a topic, as a record says: see the table scope.
create or replace function postbus.scope_cursor(scope postbus.scope, topic postbus.topic) returns postbus.log_cursor
language plpgsql stable as $$
declare
    _cursor postbus.log_cursor := postbus.cursor_at(row(0, '2', '3:3:')::postbus.log_position);
begin
    if scope.start_id is not null then
        _cursor.since_id := scope.start_id;
        _cursor.since_bound := 9223372036854775807;
    elsif scope.start_at is not null then
        _cursor.since_bound := 9223372036854775807;
        _cursor.since_at := scope.start_at;
        _cursor.since_snapshot := case when scope.start_at <= scope.recorded_at then scope.snapshot end;
        _cursor.seen := postbus.position_before(topic.storage_id, scope.start_at, _cursor.since_snapshot);
    end if;
    return _cursor;
end $$;
