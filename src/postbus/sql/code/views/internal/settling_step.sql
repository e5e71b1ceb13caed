-- The first row of the ledger with which a subscription was past a message, after the number with which a stretch began, and up to
-- the number with which it ended. It tells when, and by which process, the message was settled.
--
-- Old rows are receipts, in the partition of the sequence that was reached: that of the message, or the next one in which the
-- subscription has some.
create or replace function postbus.settling_step(
    topic           postbus.topic,
    subscription_id bigint,
    after_number    bigint,
    up_to_number    bigint,
    segment         postbus.segment_ref,
    index           integer,
    out at     timestamptz,
    out worker text
)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
declare
    _up_to     bigint := coalesce(up_to_number, 9223372036854775807);
    _number    bigint;
    _found     record;
    _partition integer;
    _since     timestamptz;
begin
    select f.number, f.at, f.worker into _number, at, worker
      from postbus.settling_step_now(subscription_id, after_number, _up_to, segment, index) as f;
    if _number is not null and exists (select from postbus.cursor c
                                        where c.subscription_id = settling_step.subscription_id and c.lane = segment.lane
                                          and c.number = _number - 1) then
        return;         -- the row before it is not past the message, or it began the stretch
    end if;
    _up_to := least(_up_to, _number);
    for _partition, _since in        -- a second time, since a clock may have been set back
        select l.epoch, since.at
          from postbus.receipt_partition known
          join postbus.log_partition l on l.storage_id = known.storage_id and l.epoch = known.epoch
         cross join (values (1, segment.published_at), (2, '-infinity')) as since (turn, at)
         where known.subscription_id = settling_step.subscription_id and l.storage_id = topic.storage_id and l.epoch >= segment.sequence >> 43
         order by since.turn, l.epoch
    loop
        execute format(
            'select r.at, r.worker from postbus.%I r
              where r.subscription_id = $1 and r.lane = $2 and r.at >= $3 and r.number > $4 and r.number <= $5 and r.moved is null
                and postbus.is_past(r.cursor, $6, $7, $8, $9, $10)
              order by r.at, r.number limit 1', format('receipt_%s_%s', topic.storage_id, _partition))
           into _found
          using subscription_id, segment.lane, _since, after_number, _up_to,
                segment.sequence, segment.txid, index, segment.count, segment.published_at;
        if _found.at is not null then
            at := _found.at;
            worker := _found.worker;
            return;
        end if;
        exit when _since = '-infinity' and at is not null;      -- the row that was found is the first, or nearly
    end loop;
end $$;
