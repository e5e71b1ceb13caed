-- Notes that a subscription goes on after it was DEAD or cancelled: where it stands, a new stretch begins in each lane. One in which nothing
-- was settled begins anew.
--
-- Writes: stretch, retrying, receipt, dead_letter.  Locks: its rows.
create or replace function postbus.note_return(subscription_id bigint) returns void
language plpgsql
set enable_seqscan = off as $$
declare
    _now  record;
    _last postbus.stretch;
    _ahead bigint[];
begin
    for _now in
        select c.lane, c.number, c.cursor from postbus.current_cursor c where c.subscription_id = note_return.subscription_id order by c.lane
    loop
        select * into _last from postbus.stretch st
         where st.subscription_id = note_return.subscription_id and st.lane = _now.lane and st.reached is null for update;
        if _last.began::text = (_now.cursor)::text then
            update postbus.stretch st set txid = pg_current_xact_id(), died = null
             where st.subscription_id = _last.subscription_id and st.lane = _last.lane and st.number = _last.number;
        elsif _last.number is not null then
            update postbus.stretch st set reached = _now.cursor, died = coalesce(st.died, postbus.place_now(st.topic_id))
             where st.subscription_id = _last.subscription_id and st.lane = _last.lane and st.number = _last.number;
            insert into postbus.stretch (subscription_id, lane, number, topic_id, group_id, group_name, began)
            values (_last.subscription_id, _last.lane, _now.number, _last.topic_id, _last.group_id, _last.group_name, _now.cursor);
            -- What the cursor was not past yet goes by in the new one.
            _ahead := array(select r.id from postbus.retrying r
                             where r.subscription_id = _last.subscription_id and r.lane = _last.lane and r.stretch is not null
                               and postbus.is_ahead(r.subscription_id, r.lane, r.id, r.position));
            update postbus.retrying r set stretch = _now.number
             where r.subscription_id = _last.subscription_id and r.lane = _last.lane and r.id = any (_ahead);
            _ahead := array(select one.id from postbus.settled_ahead a
                             cross join lateral (select postbus.first_id(a.position) + index as id
                                                   from unnest(a.indexes) as run, generate_series(lower(run), upper(run) - 1) as index) as one
                             where a.subscription_id = _last.subscription_id and a.lane = _last.lane
                               and postbus.is_ahead(a.subscription_id, a.lane, one.id, a.position));
            continue when _ahead = '{}';
            update postbus.receipt r set stretch = _now.number
             where r.storage_id = (select t.storage_id from postbus.topic t where t.id = _last.topic_id)
               and r.subscription_id = _last.subscription_id and r.id = any (_ahead) and r.stretch >= _last.number;
            update postbus.dead_letter d set stretch = _now.number
             where d.topic_id = _last.topic_id and d.subscription_id = _last.group_id and d.id = any (_ahead) and d.stretch >= _last.number;
        end if;
    end loop;
end $$;
