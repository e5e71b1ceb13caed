-- Keeps receipts of messages that were settled by themselves, or never were: tried more than once, popped, given up, left behind. All of them
-- if the topic wants receipts; else only those that are odd: they say of a message what the stretch it was in does not tell.
--
--   that it was not settled there;
--   that it was, though it is in no stretch, as one that was handed over, or not in the one in which it waited (below 0);
--   that it was, and when, where a group has joined since the message was published: it may have been waiting then.
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
    workers         text[],         -- null: the lane's holder
    stretches       bigint[],
    as_of           timestamptz
) returns void
language plpgsql
set enable_seqscan = off as $$
declare
    _joined bigint := (select max(j.position) from postbus.joining j where j.topic_id = topic.id and j.lane = keep_receipt.lane);
    _holder text := (select l.holder from postbus.lane l where l.subscription_id = keep_receipt.subscription_id and l.lane = keep_receipt.lane);
begin
    insert into postbus.receipt (storage_id, epoch, subscription_id, lane, at, worker, id, outcome, attempts, error, stretch, txid, odd)
    select topic.storage_id, postbus.epoch_of(topic.storage_id, known.position >> 43), keep_receipt.subscription_id, keep_receipt.lane, as_of,
           case when workers is null then _holder else one.worker end, one.id, one.outcome, one.attempts, left(one.error, 4000),
           one.stretch, pg_current_xact_id(), told.is_odd or one.attempts > 1
      from unnest(ids, positions, outcomes, keep_receipt.attempts, errors, workers, stretches)
           as one (id, position, outcome, attempts, error, worker, stretch)
     cross join lateral (select one.outcome <> 'COMPLETED' or one.stretch is null or one.stretch < 0
                                or coalesce(one.position <= _joined, false) as is_odd) as told
      -- What was read from the log is where it says; others may be somewhere else, or nowhere.
     cross join lateral (select case when one.stretch is not null or one.position >> 43 = 0 then one.position
                                     else coalesce(postbus.position_of(topic, one.id), one.position) end as position) as known
     where topic.tracking = 'REFERENCE_COUNTING' or told.is_odd;
end $$;
