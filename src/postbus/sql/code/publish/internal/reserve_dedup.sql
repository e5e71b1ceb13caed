-- The id of the message that a deduplication key stands for: a new one at the key's first use within the topic's window, otherwise
-- that of the message published first.
--
-- Waits while another transaction that uses the same key is open: only its end tells which of them was first.
--
-- Writes: dedup.  Locks: the dedup row of the key.
create or replace function postbus.reserve_dedup(
    topic     postbus.topic,
    dedup_key text,
    as_of     timestamptz,
    fresh_id  bigint,
    out message_id bigint,
    out is_new     boolean
)
language plpgsql as $$
begin
    insert into postbus.dedup as known (topic_id, dedup_key, message_id, expires_at)
    values (topic.id, reserve_dedup.dedup_key, fresh_id, as_of + topic.dedup_window)
    on conflict on constraint dedup_pkey do update
       set message_id = excluded.message_id, expires_at = excluded.expires_at
     where known.expires_at <= as_of
    returning known.message_id into reserve_dedup.message_id;

    is_new := reserve_dedup.message_id is not null;
    if not is_new then
        select known.message_id into reserve_dedup.message_id
          from postbus.dedup known
         where known.topic_id = topic.id and known.dedup_key = reserve_dedup.dedup_key;
    end if;
end $$;
