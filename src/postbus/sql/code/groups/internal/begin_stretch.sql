-- Notes that the cursor of a subscription was set in a lane, by the row of the ledger with this number: the stretch that it has
-- worked through ends at `reached`, and another stretch begins.
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
    -- A stretch that began in this same transaction, and ends at once, was never visible.
    delete from postbus.stretch st
     where st.subscription_id = begin_stretch.subscription_id and st.lane = begin_stretch.lane and st.reached is null
       and st.txid = pg_current_xact_id() and st.began::text = (begin_stretch.reached)::text;
    update postbus.stretch st set reached = begin_stretch.reached, died = coalesce(st.died, postbus.log_end(st.topic_id))
     where st.subscription_id = begin_stretch.subscription_id and st.lane = begin_stretch.lane and st.reached is null;
    insert into postbus.stretch (subscription_id, lane, number, topic_id, group_id, group_name, began, died)
    select s.id, begin_stretch.lane, begin_stretch.number, s.topic_id, coalesce(s.catch_up_of, s.id), s.group_name, begin_stretch.began,
           -- A group whose cursor is set while it is DEAD is required for nothing.
           case when s.state = 'DEAD' then row((postbus.log_end(s.topic_id)).sequence, null, '3:3:')::postbus.log_position end
      from postbus.subscription s where s.id = begin_stretch.subscription_id;
end $$;
