-- Gives back messages of a lease for another attempt, after `delay` or the topic's backoff. Messages that have had max_attempts (or
-- the topic's) become dead letters. Returns what became of each message: 'retried', 'dead' or 'lost'.
--
-- In an ordered topic the message stays the head of its key, so the key waits for it.
--
-- Writes and locks: see settle_leased.
create or replace function postbus.retry(
    token        uuid,
    ids          bigint[],
    delay        interval default null,
    error        text default null,
    max_attempts integer default null
) returns table (message_id bigint, outcome text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if delay < interval '0' or delay > interval '1000 years' then
        perform postbus.check_delay(delay);
    end if;
    return query select * from postbus.settle_leased(token, ids, 'retry', delay, error, null, max_attempts);
end $$;
