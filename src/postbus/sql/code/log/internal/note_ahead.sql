-- Remembers messages that are settled before their group's cursor is past them, so that nobody handles them again.
--
-- Writes: settled_ahead.
create or replace function postbus.note_ahead(subscription_id bigint, lane integer, ids bigint[], positions bigint[]) returns void
language sql as $$
    insert into postbus.settled_ahead as known (subscription_id, lane, position, indexes)
    select note_ahead.subscription_id, note_ahead.lane, one.position,
           range_agg(int4range((one.id & 1023)::integer, (one.id & 1023)::integer + 1))
      from unnest(ids, positions) as one (id, position)
     where postbus.is_ahead(note_ahead.subscription_id, note_ahead.lane, one.id, one.position)
     group by one.position
     order by one.position
    on conflict on constraint settled_ahead_pkey do update set indexes = known.indexes + excluded.indexes
$$;
