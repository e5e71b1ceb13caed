-- A record of a scope, to be stored, with the group's start: mode `new` starts earlier by look_back, `message` starts at start_id.
-- Refuses options that contradict one another.
create or replace function postbus.new_scope(
    scope     postbus.scope,
    mode      text,
    start_at  timestamptz,
    look_back interval,
    start_id  bigint
) returns postbus.scope
language plpgsql as $$
begin
    if mode is null or mode not in ('new', 'all', 'timestamp', 'message') then
        perform postbus.refuse('PB402', format('mode %s is not known', coalesce(quote_literal(mode), 'null')), 'use new, all, timestamp or message');
    elsif (mode = 'timestamp') <> (start_at is not null) or not postbus.is_a_time(start_at) then
        perform postbus.refuse('PB402', 'mode timestamp and start_at go together',
            'give both of them, with a time between the years 1 and 9999, or neither');
    elsif (mode = 'message') <> (start_id is not null) then
        perform postbus.refuse('PB402', 'mode message and start_id go together', 'give both of them, or neither');
    elsif start_id is not null and scope.topic is null then
        perform postbus.refuse('PB402', 'the topics of a namespace, task or pattern have no message in common to start from',
            'start them at a time: mode timestamp with start_at');
    elsif (look_back between interval '0' and interval '1000 years') is not true then
        perform postbus.refuse('PB402', format('look_back %s is not a duration of zero or more', coalesce(look_back::text, 'null')),
            'give one such as 4 seconds');
    end if;
    perform postbus.check_start_id(start_id);
    scope.mode := mode;
    scope.start_id := start_id;
    scope.snapshot := pg_current_snapshot();
    scope.start_at := case mode when 'new' then scope.recorded_at - look_back else new_scope.start_at end;
    return scope;
end $$;
