-- The messages of lanes that their holder must not handle when it reads them from the log: deferred messages and, if asked for,
-- settled ones (is_done). The holder will still read those that are `ahead`.
create or replace function postbus.deferred_of(tokens uuid[], with_settled boolean default true)
returns table (subscription_id bigint, lane integer, id bigint, key text, is_done boolean, ahead boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _lane record;
begin
    return query
    select r.subscription_id, r.lane, r.id, r.key, false, postbus.is_ahead(r.subscription_id, r.lane, r.id, r.sequence)
      from postbus.lane l join postbus.deferred r on r.subscription_id = l.subscription_id and r.lane = l.lane
     where l.token = any (tokens);
    -- Lane by lane, so that each query reads one storage.
    for _lane in
        select l.subscription_id, l.lane, t.id as topic_id, t.storage_id, c.cursor
          from postbus.lane l
          join postbus.subscription s on s.id = l.subscription_id
          join postbus.topic t on t.id = s.topic_id
          join postbus.current_cursor c on c.subscription_id = l.subscription_id and c.lane = l.lane
         where with_settled and l.token = any (tokens)
           and exists (select from postbus.settled_ahead a where a.subscription_id = l.subscription_id and a.lane = l.lane)
    loop
        return query
        select a.subscription_id, a.lane, postbus.first_id(a.sequence) + one.index, null::text, true, true
          from postbus.settled_ahead a
          join postbus.segment s
            on s.storage_id = _lane.storage_id and s.topic_id = _lane.topic_id and s.sequence = a.sequence and s.lane = a.lane
         cross join lateral unnest(a.indexes) as run
         cross join lateral generate_series(greatest(lower(run), s.count - postbus.unseen_in_segment(_lane.cursor, s.sequence, s.txid, s.count,
                                                                                          s.published_at)), upper(run) - 1) as one (index)
         where a.subscription_id = _lane.subscription_id and a.lane = _lane.lane;
    end loop;
end $$;
