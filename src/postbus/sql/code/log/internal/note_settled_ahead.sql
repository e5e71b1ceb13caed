-- Remembers messages that are settled ahead of their group's cursor, so that they are not delivered again.
--
-- Writes: settled_ahead.
create or replace function postbus.note_settled_ahead(subscription_id bigint, lane integer, ids bigint[], sequences bigint[]) returns void
language sql as $$
    insert into postbus.settled_ahead as known (subscription_id, lane, sequence, indexes)
    select note_settled_ahead.subscription_id, note_settled_ahead.lane, one.sequence,
           range_agg(int4range((one.id & 1023)::integer, (one.id & 1023)::integer + 1))
      from unnest(ids, sequences) as one (id, sequence)
     where postbus.is_ahead(note_settled_ahead.subscription_id, note_settled_ahead.lane, one.id, one.sequence)
     group by one.sequence
     order by one.sequence
    on conflict on constraint settled_ahead_pkey do update set indexes = known.indexes + excluded.indexes
$$;
