-- Remembers messages that are settled before their group's cursor is past them, so that nobody handles them again.
--
-- Writes: settled_ahead.
create or replace function postbus.note_ahead(subscription_id bigint, lane integer, ids bigint[], positions bigint[]) returns void
language sql as $$
    insert into postbus.settled_ahead (subscription_id, lane, id, position)
    select note_ahead.subscription_id, note_ahead.lane, one.id, one.position
      from unnest(ids, positions) as one (id, position)
     where postbus.is_ahead(note_ahead.subscription_id, note_ahead.lane, one.id, one.position)
    on conflict do nothing
$$;
