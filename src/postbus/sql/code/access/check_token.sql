-- The rights of a token of the HTTP server. No row if the token is unknown, revoked or expired.
create or replace function postbus.check_token(id text, hash bytea)
returns table (name text, roles text[], topics text[], groups text[], payloads boolean, remaining interval)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select t.name, t.roles, t.topics, t.groups, t.payloads, t.expires_at - clock_timestamp()
      from postbus.token t
     where t.id = check_token.id and t.hash = check_token.hash and t.revoked_at is null
       and (t.expires_at is null or t.expires_at > clock_timestamp())
$$;
