-- The tokens of the HTTP server, with their creators and last uses, and whether they are valid.
create or replace view postbus.tokens as
select t.id, t.name, t.roles, t.topics, t.created_at, t.expires_at, t.revoked_at,
       case when t.revoked_at is not null then 'revoked' when t.expires_at <= clock_timestamp() then 'expired' else 'valid' end as state,
       t.groups, t.payloads, t.created_by, t.last_used_at
  from postbus.token t;
