-- Gives back messages of a lease: the attempt does not count. Returns the ids of lost messages.
--
-- Writes and locks: see settle_leased.
create or replace function postbus.release(token uuid, ids bigint[]) returns bigint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    return array(select s.message_id from postbus.settle_leased(token, ids, 'release') as s where s.became = 'lost');
end $$;
