-- Keeps receipts of messages that were settled one by one, or never: tried more than once, popped, given up, left behind. Keeps all
-- of them if the topic is tracked by receipts, otherwise only those that say of a message what its stretch does not say:
--
--   the message was not settled in the stretch;
--   it was settled, though in no stretch, if it was handed over; or not in the stretch in which it waited (stretch below 0);
--   it was settled, and when, if a group has joined since the message was published: it may have been waiting then.
--
-- Writes: receipt.
create or replace function postbus.keep_receipt(
    topic           postbus.topic,
    subscription_id bigint,
    lane            integer,
    ids             bigint[],
    sequences       bigint[],
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
    _joined bigint := (select max(j.sequence) from postbus.joining j where j.topic_id = topic.id and j.lane = keep_receipt.lane);
    _holder text := (select l.holder from postbus.lane l where l.subscription_id = keep_receipt.subscription_id and l.lane = keep_receipt.lane);
begin
    insert into postbus.receipt (storage_id, epoch, subscription_id, lane, at, worker, id, outcome, attempts, error, stretch, txid, deviates)
    select topic.storage_id, postbus.epoch_of(topic.storage_id, known.sequence >> 43), keep_receipt.subscription_id, keep_receipt.lane, as_of,
           case when workers is null then _holder else one.worker end, one.id, one.outcome, one.attempts, left(one.error, 4000),
           one.stretch, pg_current_xact_id(), judged.deviates or one.attempts > 1
      from unnest(ids, sequences, outcomes, keep_receipt.attempts, errors, workers, stretches)
           as one (id, sequence, outcome, attempts, error, worker, stretch)
     cross join lateral (select one.outcome <> 'COMPLETED' or one.stretch is null or one.stretch < 0
                                or coalesce(one.sequence <= _joined, false) as deviates) as judged
      -- Messages that were read from the log have the given sequence; others may have another one, or none.
     cross join lateral (select case when one.stretch is not null or one.sequence >> 43 = 0 then one.sequence
                                     else coalesce(postbus.sequence_of(topic, one.id), one.sequence) end as sequence) as known
     where topic.tracking = 'REFERENCE_COUNTING' or judged.deviates;
end $$;
