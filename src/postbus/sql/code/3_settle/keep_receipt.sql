-- Keeps a receipt for messages that were tried more than once, or given up, if the topic wants receipts.
--
-- Writes: receipt.
create or replace function postbus.keep_receipt(
    topic           postbus.topic,
    subscription_id bigint,
    lane            integer,
    ids             bigint[],
    positions       bigint[],
    outcomes        text[],
    attempts        integer[],
    errors          text[],
    as_of           timestamptz
) returns void
language plpgsql as $$
begin
    if topic.tracking is distinct from 'REFERENCE_COUNTING' then
        return;
    end if;
    insert into postbus.receipt (storage_id, epoch, subscription_id, lane, at, worker, id, outcome, attempts, error)
    select topic.storage_id, postbus.epoch_of(topic.storage_id, one.position >> 43), keep_receipt.subscription_id, keep_receipt.lane, as_of,
           (select l.holder from postbus.lane l where l.subscription_id = keep_receipt.subscription_id and l.lane = keep_receipt.lane),
           one.id, one.outcome, one.attempts, left(one.error, 4000)
      from unnest(ids, positions, outcomes, keep_receipt.attempts, errors) as one (id, position, outcome, attempts, error);
end $$;
