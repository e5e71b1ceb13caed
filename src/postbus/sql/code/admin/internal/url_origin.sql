-- The part of an address that the audit log shows: the rest may be a secret.
create or replace function postbus.url_origin(url text) returns text
language sql immutable as $$
    select substring(url from '^[^/]+//[^/?#]+') || case when url ~ '^[^/]+//[^/?#]+[/?#]' then '/...' else '' end
$$;
