-- Removes a webhook. Its group stays, with its place.
--
-- Writes: webhook.
create or replace function postbus.delete_webhook(name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    delete from postbus.webhook w where w.name = delete_webhook.name;
    if not found then
        perform postbus.refuse('PB445', format('there is no webhook %L', delete_webhook.name), 'list them: GET /v1/webhooks');
    end if;
end $$;
