-- Passes keys of an ordered topic on: the message in hand is settled, the next of each key may be
-- claimed.
--
-- Writes: busy_key, queued.  Locks: busy_key rows in the order of their keys.
create or replace function postbus.pass_keys(topic_id bigint, keys text[]) returns void
language plpgsql as $$
begin
    perform from postbus.busy_key b
      where b.topic_id = pass_keys.topic_id and b.key = any (pass_keys.keys)
      order by b.key for update;
    update postbus.busy_key b
       set head_id = (select q.id from postbus.queued q
                       where q.topic_id = b.topic_id and q.key = b.key and q.ordered
                       order by q.topic_id, q.key, q.id limit 1)
     where b.topic_id = pass_keys.topic_id and b.key = any (pass_keys.keys);
    delete from postbus.busy_key b
     where b.topic_id = pass_keys.topic_id and b.key = any (pass_keys.keys) and b.head_id is null;
    -- A new txid, so that it lies above every claimer's floor.
    update postbus.queued q
       set parked = false, txid = pg_current_xact_id()
      from postbus.busy_key b
     where b.topic_id = pass_keys.topic_id and b.key = any (pass_keys.keys)
       and q.topic_id = b.topic_id and q.key = b.key and q.id = b.head_id and q.ordered and q.parked;
end $$;
