-- Merges adjacent stretches of a subscription, unless a joining has to tell them apart. So a group that comes and goes does not
-- leave more and more stretches.
--
-- Writes: stretch.  Locks: its rows.
create or replace function postbus.join_stretches(subscription_id bigint) returns void
language plpgsql
set enable_seqscan = off as $$
declare
    _old  postbus.stretch;
    _next postbus.stretch;
begin
    for _next in
        select * from postbus.stretch st where st.subscription_id = join_stretches.subscription_id order by st.lane, st.number for update
    loop
        if _old.lane = _next.lane and _old.reached::text = _next.began::text
           and not exists (select from postbus.joining j
                            where j.topic_id = _next.topic_id and j.lane = _next.lane
                              and pg_visible_in_snapshot(_old.txid, j.snapshot) and not pg_visible_in_snapshot(_next.txid, j.snapshot))
        then
            delete from postbus.stretch st
             where st.subscription_id = _next.subscription_id and st.lane = _next.lane and st.number = _next.number;
            update postbus.stretch st set reached = _next.reached, died = _next.died
             where st.subscription_id = _old.subscription_id and st.lane = _old.lane and st.number = _old.number;
            _next.number := _old.number;
            _next.txid := _old.txid;
            _next.began := _old.began;
        end if;
        _old := _next;
    end loop;
end $$;
