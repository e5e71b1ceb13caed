-- Roughly since when the log has messages for a pulling group; null if it has none. Cheap; a time although there are none does no
-- harm, since read_log finds that out. For a topic with its own log storage only a read tells, so the answer is -infinity.
create or replace function postbus.news_since(subscription_id bigint) returns timestamptz
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
    _topic  postbus.topic := postbus.subscribed_topic(subscription_id);
    _cursor postbus.log_cursor;
    _at     timestamptz;
begin
    if _topic.storage = 'own' or exists (select from postbus.subscription history
                                         where history.catch_up_of = news_since.subscription_id and history.state = 'ACTIVE') then
        return '-infinity';
    end if;
    for _cursor in
        select (one.cursor).* from (select distinct on (c.cursor::text) c.cursor from postbus.current_cursor c
                                     where c.subscription_id = news_since.subscription_id) as one
    loop
        if _cursor.target is not null then
            return '-infinity';     -- in the middle of a step
        end if;
        select s.published_at into _at from postbus.segment_shared s
         where s.storage_id = _topic.storage_id and s.topic_id = _topic.id and s.sequence > (_cursor.seen).sequence
           and not pg_visible_in_snapshot(s.txid, (_cursor.seen).snapshot)
         order by s.topic_id, s.sequence limit 1;
        if _at is null then         -- late segments lie below that: see read_log
            select s.published_at into _at
              from (select open.txid as low, open.txid as high from pg_snapshot_xip((_cursor.seen).snapshot) as open (txid)
                     union all
                    select pg_snapshot_xmax((_cursor.seen).snapshot), (_cursor.seen).txid) as late
             cross join lateral (select s.published_at from postbus.segment_shared s
                                  where s.storage_id = _topic.storage_id and s.txid >= late.low and s.txid <= late.high
                                    and s.topic_id + 0 = _topic.id limit 1) as s
             limit 1;
        end if;
        if _at is not null then
            return _at;
        end if;
    end loop;
    -- This session may not know a new storage: see published_epoch.
    return case when postbus.published_epoch(_topic.storage_id) is null then statement_timestamp() end;
end $$;
