-- Refuses to start from the id of a message that cannot exist yet. The id after the last one is valid: it is the next message's.
create or replace function postbus.check_start_id(start_id bigint) returns void
language plpgsql as $$
declare
    _next bigint := (coalesce(pg_sequence_last_value('postbus.segment_number'), 0) + 1) * 1024;
begin
    if start_id < 0 then
        perform postbus.refuse('PB402', format('start_id %s is negative', start_id), 'give the id of a message of the topic');
    elsif start_id > _next then
        perform postbus.refuse('PB402', format('no message has the id %s: all ids so far are below %s', start_id, _next),
            'give the id of a message of the topic; or begin with new messages: FROM_NOW, or mode new for a scope');
    end if;
end $$;
