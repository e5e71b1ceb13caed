-- Makes the first message of each key visible to claimers, if it is parked. The message gets a new txid, so that it lies above
-- every claimer's scan floor.
--
-- Writes: queued.
create or replace function postbus.unpark_heads(topic_id bigint, keys text[]) returns void
language sql as $$
    update postbus.queued q
       set parked = false, txid = pg_current_xact_id()
      from postbus.busy_key b
     where b.topic_id = unpark_heads.topic_id and b.key = any (unpark_heads.keys)
       and q.topic_id = b.topic_id and q.key = b.key and q.id = b.head_id and q.ordered and q.parked
$$;
