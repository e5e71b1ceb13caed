-- Notes that a subscription was set elsewhere in a lane, by the row of the ledger with this number: what it had worked through up
-- to `reached` is one stretch, and another one begins.
--
-- Writes: stretch.
create or replace function postbus.begin_stretch(
    subscription_id bigint,
    lane            integer,
    number          bigint,
    reached         postbus.log_cursor,
    began           postbus.log_cursor
) returns void
language plpgsql
set enable_seqscan = off as $$
begin
    -- One that began in this same transaction, and is left at once, was never seen.
    delete from postbus.stretch st
     where st.subscription_id = begin_stretch.subscription_id and st.lane = begin_stretch.lane and st.reached is null
       and st.txid = pg_current_xact_id() and st.began::text = (begin_stretch.reached)::text;
    update postbus.stretch st set reached = begin_stretch.reached, died = coalesce(st.died, postbus.log_end(st.topic_id))
     where st.subscription_id = begin_stretch.subscription_id and st.lane = begin_stretch.lane and st.reached is null;
    insert into postbus.stretch (subscription_id, lane, number, topic_id, group_id, group_name, began, died)
    select s.id, begin_stretch.lane, begin_stretch.number, s.topic_id, coalesce(s.catch_up_of, s.id), s.group_name, begin_stretch.began,
           -- Nothing is required for a group that is set elsewhere while it is DEAD.
           case when s.state = 'DEAD' then row((postbus.log_end(s.topic_id)).sequence, null, '3:3:')::postbus.log_position end
      from postbus.subscription s where s.id = begin_stretch.subscription_id;
end $$;
