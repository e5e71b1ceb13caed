-- The first row of the ledger with which a subscription was past a message, after the number from which a stretch began and up to the one
-- with which it ended: it tells when, and by whom, the message was settled. Old rows are receipts: these are looked for in the leaf of
-- the message, and in later ones if it is not there.
create or replace function postbus.first_past(
    topic           postbus.topic,
    subscription_id bigint,
    after_number    bigint,
    up_to_number    bigint,
    segment         postbus.looked_at,
    index           integer,
    out at     timestamptz,
    out worker text
)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
declare
    _leaf  integer;
    _since timestamptz;
    _low   bigint;
    _high  bigint;
    _mid   bigint;
    _found record;
    _row   record;
    _is_newer boolean := false;     -- found where it was not folded yet, and before what was
begin
    foreach _since in array array[segment.published_at, '-infinity'] loop       -- the second for a clock that was set back
        for _leaf in
            select l.epoch from postbus.log_leaf l
             where l.storage_id = topic.storage_id and l.epoch >= segment.position >> 43 and l.epoch <= postbus.epoch(topic.storage_id)
             order by l.epoch
        loop
            execute format(
                'select r.number, r.at, r.worker from postbus.%I r
                  where r.subscription_id = $1 and r.lane = $2 and r.at >= $3 and r.number > $4 and r.number <= $5 and r.moved is null
                    and postbus.covers(r.cursor, $6, $7, $8, $9, $10)
                  order by r.at, r.number limit 1', format('receipt_%s_%s', topic.storage_id, _leaf))
               into _found
              using subscription_id, segment.lane, _since, after_number, coalesce(up_to_number, 9223372036854775807),
                    segment.position, segment.txid, index, segment.count, segment.published_at;
            exit when _found.number is not null;
        end loop;
        exit when _found.number is not null;
    end loop;
    -- Each row of a stretch is past what the one before it was past: so the first one is found by halves.
    select min(c.number), max(c.number) into _low, _high from postbus.cursor c
     where c.subscription_id = first_past.subscription_id and c.lane = segment.lane and c.number > after_number
       and c.number <= coalesce(least(up_to_number, _found.number), 9223372036854775807) and c.moved is null;
    while _low <= _high loop
        _mid := (_low + _high) / 2;
        select c.number, c.at, c.worker,
               postbus.covers(c.cursor, segment.position, segment.txid, index, segment.count, segment.published_at) as is_past
          into _row from postbus.cursor c
         where c.subscription_id = first_past.subscription_id and c.lane = segment.lane and c.number >= _mid and c.number <= _high and c.moved is null
         order by c.number limit 1;
        if _row.is_past then
            at := _row.at;
            worker := _row.worker;
            _is_newer := true;
            _high := _mid - 1;
        elsif _row.number is null then
            _high := _mid - 1;
        else
            _low := _row.number + 1;
        end if;
    end loop;
    if _found.number is not null and not _is_newer then
        at := _found.at;
        worker := _found.worker;
    end if;
end $$;
