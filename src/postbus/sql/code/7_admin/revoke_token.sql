-- Ends a token for good. One that is revoked stays so; one that is not there is refused.
--
-- Writes: token.
create or replace function postbus.revoke_token(id text) returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _revoked_at timestamptz;
begin
    update postbus.token t set revoked_at = coalesce(t.revoked_at, clock_timestamp())
     where t.id = revoke_token.id
    returning t.revoked_at into _revoked_at;
    if not found then
        perform postbus.refuse('PB444', format('there is no token %L', revoke_token.id), 'list them: postbus tokens list');
    end if;
    return _revoked_at;
end $$;
