-- Notes what is in the leaf that is written to, once for each period of its storage by which it is older: so that thin_marked can
-- tell what has been there for longer than a topic's max_retention. last_position was read before this transaction had an id:
-- whoever was given a position up to it has a lower one.
--
-- Writes: leaf_mark.
create or replace function postbus.mark_leaf(storage postbus.storage, epoch integer, last_position bigint, as_of timestamptz) returns void
language sql as $$
    insert into postbus.leaf_mark (storage_id, epoch, at, position, txid)
    select l.storage_id, l.epoch, as_of, last_position, pg_current_xact_id()
      from postbus.log_leaf l
     cross join lateral (select max(m.at) as at, max(m.position) as position from postbus.leaf_mark m
                          where m.storage_id = l.storage_id and m.epoch = l.epoch) as last
     where l.storage_id = (storage).id and l.epoch = mark_leaf.epoch
       and greatest(l.opened_at, last.at) <= as_of - (storage).period
       and last_position >> 43 = l.epoch
       and (last.position is null or last.position < last_position)
       and exists (select from postbus.leaf_topic part where part.storage_id = l.storage_id and part.epoch = l.epoch)
$$;
