-- Gives up messages of a lease: they become dead letters at once. Returns the ids of lost messages.
--
-- Writes and locks: see settle_leased.
create or replace function postbus.dead_letter(
    token  uuid,
    ids    bigint[],
    reason text,
    error  text default null
) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    return array(
        select s.message_id
          from postbus.settle_leased(token, ids, 'dead', error => error, reason => coalesce(reason, 'dead-lettered')) as s
         where s.became = 'lost');
end $$;
