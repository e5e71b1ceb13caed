-- The same as settling_step, for rows of the ledger that have not become receipts yet. Each row of a stretch is past all messages
-- that the row before it was past, so the first one is found by bisection.
create or replace function postbus.settling_step_now(
    subscription_id bigint,
    after_number    bigint,
    up_to_number    bigint,
    segment         postbus.segment_ref,
    index           integer,
    out number bigint,
    out at     timestamptz,
    out worker text
)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
declare
    _low  bigint;
    _high bigint;
    _row  record;
begin
    select min(c.number), max(c.number) into _low, _high from postbus.cursor c
     where c.subscription_id = settling_step_now.subscription_id and c.lane = segment.lane and c.number > after_number
       and c.number <= up_to_number and c.moved is null;
    while _low <= _high loop
        select c.number, c.at, c.worker,
               postbus.is_past(c.cursor, segment.sequence, segment.txid, index, segment.count, segment.published_at) as is_past
          into _row from postbus.cursor c
         where c.subscription_id = settling_step_now.subscription_id and c.lane = segment.lane
           and c.number >= (_low + _high) / 2 and c.number <= _high and c.moved is null
         order by c.number limit 1;
        if _row.is_past then
            number := _row.number;
            at := _row.at;
            worker := _row.worker;
        end if;
        if _row.is_past is not false then
            _high := (_low + _high) / 2 - 1;
        else
            _low := _row.number + 1;
        end if;
    end loop;
end $$;
