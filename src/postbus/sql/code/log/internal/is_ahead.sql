-- Whether a message is ahead of a group's cursor: the group will still read it. A message that is no longer in the log is not.
create or replace function postbus.is_ahead(subscription_id bigint, lane integer, id bigint, sequence bigint) returns boolean
language plpgsql stable as $$
declare
    _topic_id   bigint;
    _storage_id integer;
begin
    select t.id, t.storage_id into _topic_id, _storage_id
      from postbus.subscription s join postbus.topic t on t.id = s.topic_id where s.id = is_ahead.subscription_id;
    return exists (
        select from postbus.segment s
          join postbus.current_cursor c on c.subscription_id = is_ahead.subscription_id and c.lane = is_ahead.lane
         where s.storage_id = _storage_id and s.topic_id = _topic_id and s.sequence = is_ahead.sequence and s.lane = is_ahead.lane
           and not postbus.is_past(c.cursor, s.sequence, s.txid, (is_ahead.id & 1023)::integer, s.count, s.published_at));
end $$;
