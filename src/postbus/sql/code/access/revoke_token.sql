-- Revokes a token for good. Revoking twice changes nothing; a token that does not exist is refused.
--
-- Writes: token; see note_action.  Locks: its row.
create or replace function postbus.revoke_token(id text) returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _token postbus.token;
begin
    select * into _token from postbus.token t where t.id = revoke_token.id for update;
    if not found then
        perform postbus.refuse('PB444', format('there is no token %L', revoke_token.id), 'list them: postbus tokens list');
    elsif _token.revoked_at is null then
        update postbus.token t set revoked_at = clock_timestamp() where t.id = revoke_token.id returning t.* into _token;
        perform postbus.note_action('token.revoke', target => _token.id, before => jsonb_build_object('name', _token.name));
    end if;
    return _token.revoked_at;
end $$;
