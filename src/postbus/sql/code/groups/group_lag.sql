-- How many messages are ahead of a group, and when the oldest of them was published. Cheap: the sweep counts published messages,
-- cursors count those that the group is done with, and one message per lane is looked up. Messages in the pull buffer that were
-- never popped are counted one by one: they are few.
create or replace function postbus.group_lag(subscription_id bigint, out messages bigint, out oldest_at timestamptz)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _subscription postbus.subscription;
    _topic        postbus.topic := postbus.subscribed_topic(subscription_id);
    _passed       bigint := 0;
    _lane         record;
    _at           timestamptz;
begin
    select * into _subscription from postbus.subscription s where s.id = group_lag.subscription_id;
    for _lane in
        select c.lane, c.cursor, c.passed from postbus.current_cursor c where c.subscription_id = group_lag.subscription_id
    loop
        _passed := _passed + _lane.passed;
        _at := postbus.oldest_unseen(_topic, _lane.cursor, _lane.lane);
        oldest_at := least(oldest_at, _at);
    end loop;
    messages := case when oldest_at is null then 0
                     else greatest(1, coalesce((select c.messages from postbus.topic_count c where c.topic_id = _topic.id), 0)
                                      - _subscription.passed_before - _passed) end;
    select messages + count(*), least(oldest_at, min(r.published_at)) into messages, oldest_at
      from postbus.deferred r where r.subscription_id = group_lag.subscription_id and r.buffered and r.attempts = 0;
end $$;
