-- When and by whom a subscription was done with a message: the first row of the ledger whose cursor is past it, since
-- it was last set to a place before it. `moved` is not null where it was set past it instead. No row: it is not done.
create or replace function postbus.settlement(
    subscription_id bigint,
    lane            integer,
    "position"      bigint,
    txid            xid8,
    index           integer,
    count           integer,
    published_at    timestamptz
) returns table (at timestamptz, worker text, moved text)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
declare
    _set_back bigint := 0;
    _last     postbus.log_cursor;
begin
    _last := (select c.cursor from postbus.cursor c
               where c.subscription_id = settlement.subscription_id and c.lane = settlement.lane order by c.number desc limit 1);
    if (_last.seen).position is not null and not postbus.covers(_last, position, txid, index, count, published_at) then
        return;
    end if;
    _set_back := (select max(l.number) from postbus.ledger l
                   where l.subscription_id = settlement.subscription_id and l.lane = settlement.lane and l.moved is not null
                     and not postbus.covers(l.cursor, position, txid, index, count, published_at));
    return query
    select l.at, l.worker, l.moved from postbus.ledger l
     where l.subscription_id = settlement.subscription_id and l.lane = settlement.lane and l.at >= published_at
       and l.number > coalesce(_set_back, 0) and postbus.covers(l.cursor, position, txid, index, count, published_at)
     order by l.at, l.number limit 1;
end $$;
