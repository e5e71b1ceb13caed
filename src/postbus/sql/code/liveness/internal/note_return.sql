-- Notes that a subscription goes on from its position, after it was DEAD or cancelled: a new stretch begins in each lane. A stretch
-- in which nothing was settled begins anew.
--
-- Writes: stretch; see move_ahead_to_stretch.  Locks: its rows.
create or replace function postbus.note_return(subscription_id bigint) returns void
language plpgsql
set enable_seqscan = off as $$
declare
    _now  record;
    _last postbus.stretch;
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
            update postbus.stretch st set reached = _now.cursor, died = coalesce(st.died, postbus.log_end(st.topic_id))
             where st.subscription_id = _last.subscription_id and st.lane = _last.lane and st.number = _last.number;
            insert into postbus.stretch (subscription_id, lane, number, topic_id, group_id, group_name, began)
            values (_last.subscription_id, _last.lane, _now.number, _last.topic_id, _last.group_id, _last.group_name, _now.cursor);
            perform postbus.move_ahead_to_stretch(_last, _now.number);
        end if;
    end loop;
end $$;
