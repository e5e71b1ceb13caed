-- The cursor that a group starts with: see subscribe.
create or replace function postbus.start_cursor(
    topic      postbus.topic,
    start      text,
    start_at   timestamptz,
    start_id   bigint,
    "position" postbus.log_position
) returns postbus.log_cursor
language plpgsql as $$
declare
    _cursor postbus.log_cursor;
begin
    if start is null or start not in ('FROM_NOW', 'FROM_BEGINNING', 'FROM_TIMESTAMP', 'FROM_MESSAGE_ID') then
        perform postbus.refuse('PB402', format('start %s is not known', coalesce(quote_literal(start), 'null')),
            'use FROM_NOW, FROM_BEGINNING, FROM_TIMESTAMP or FROM_MESSAGE_ID');
    elsif (start = 'FROM_TIMESTAMP') <> (start_at is not null) then
        perform postbus.refuse('PB402', 'start_at belongs to FROM_TIMESTAMP', 'give both, or neither of them');
    elsif (start = 'FROM_MESSAGE_ID') <> (start_id is not null) then
        perform postbus.refuse('PB402', 'start_id belongs to FROM_MESSAGE_ID', 'give both, or neither of them');
    end if;
    perform postbus.check_start_id(start_id);
    if start = 'FROM_NOW' then
        _cursor.seen := position;
        return _cursor;
    end if;
    _cursor.seen := row(0, '2', '3:3:')::postbus.log_position;     -- before everything
    if start = 'FROM_TIMESTAMP' then
        _cursor.since_at := start_at;
        _cursor.since_bound := case when start_at > clock_timestamp() then 9223372036854775807 else position.sequence end;
        _cursor.seen := postbus.position_before(topic.storage_id, start_at);
    elsif start = 'FROM_MESSAGE_ID' then
        _cursor.since_id := start_id;
        _cursor.since_bound := 9223372036854775807;
    end if;
    return _cursor;
end $$;
