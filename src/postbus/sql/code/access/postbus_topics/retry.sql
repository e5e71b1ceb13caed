-- Gives back messages of a lease for another attempt. The random token proves the lease. See postbus.retry.
--
-- Writes: see postbus.retry.
create or replace function postbus_topics.retry(
    token        uuid,
    ids          bigint[],
    delay        interval default null,
    error        text default null,
    max_attempts integer default null
) returns table (message_id bigint, outcome text)
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    select r.message_id, r.outcome from postbus.retry(token, ids, delay, error, max_attempts) as r
$$;
