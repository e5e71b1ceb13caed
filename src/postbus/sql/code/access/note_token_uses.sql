-- Notes that tokens of the HTTP server were used just now. Their hashes prove that the caller knows them. A token that was noted
-- within the last half minute stays as it is, so that many servers write no more than one does.
--
-- Writes: token.  Locks: its rows (skip locked).
create or replace function postbus.note_token_uses(ids text[], hashes bytea[]) returns void
language sql security definer
set search_path = pg_catalog, pg_temp as $$
    update postbus.token t set last_used_at = clock_timestamp()
     where t.ctid = any (array(
               select known.ctid
                 from unnest(ids, hashes) as used (id, hash)
                 join postbus.token known on known.id = used.id and known.hash = used.hash
                where known.last_used_at is null or known.last_used_at < clock_timestamp() - interval '30 seconds'
                  for update of known skip locked))
$$;
