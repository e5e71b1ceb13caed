-- When and by whom a subscription was done with messages of a segment: for each, the first row of the ledger whose
-- cursor is past it, since it was last set to a place before it. `moved` is not null where it was set past it instead.
--
-- One row for all that the same row of the ledger settled: a cursor is past the first messages of a segment or past none,
-- so these follow each other, and those that are in no row come last: they are not done.
create or replace function postbus.settlement(
    subscription_id bigint,
    lane            integer,
    "position"      bigint,
    txid            xid8,
    count           integer,
    published_at    timestamptz,
    from_index      integer,
    to_index        integer
) returns table (first_index integer, last_index integer, at timestamptz, worker text, moved text)
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off as $$
declare
    _end      integer := to_index + 1;
    _last     postbus.log_cursor;
    _set_back bigint;
    _since    timestamptz;
    _number   bigint;
    _passed   integer;
begin
    _last := (select c.cursor from postbus.cursor c
               where c.subscription_id = settlement.subscription_id and c.lane = settlement.lane order by c.number desc limit 1);
    if (_last.seen).position is not null then
        _end := least(_end, count - postbus.unseen(_last, position, txid, count, published_at));
    end if;
    first_index := from_index;
    while first_index < _end loop
        _set_back := (select max(l.number) from postbus.ledger l
                       where l.subscription_id = settlement.subscription_id and l.lane = settlement.lane and l.moved is not null
                         and not postbus.covers(l.cursor, position, txid, first_index, count, published_at));
        foreach _since in array array[published_at, '-infinity'] loop      -- the second for a clock that was set back
            select l.number, l.at, l.worker, l.moved, count - postbus.unseen(l.cursor, position, txid, count, published_at)
              into _number, settlement.at, settlement.worker, settlement.moved, _passed
              from postbus.ledger l
             where l.subscription_id = settlement.subscription_id and l.lane = settlement.lane
               and (l.at >= _since or l.moved is not null)          -- a group may begin later than what is published now
               and pg_visible_in_snapshot(txid, ((l.cursor).until).snapshot) is not false      -- what is beyond its end is not its own
               and l.number > coalesce(_set_back, 0) and postbus.covers(l.cursor, position, txid, first_index, count, published_at)
             order by l.at, l.number limit 1;
            exit when _number is not null;
        end loop;
        exit when _number is null;
        last_index := least(_end, _passed, (select min(count - postbus.unseen(l.cursor, position, txid, count, published_at))
                                              from postbus.ledger l
                                             where l.subscription_id = settlement.subscription_id and l.lane = settlement.lane
                                               and l.moved is not null and l.number > _number)) - 1;
        return next;
        first_index := last_index + 1;
    end loop;
end $$;
