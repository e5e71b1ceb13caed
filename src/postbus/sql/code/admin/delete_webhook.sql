-- Removes a webhook. Its group stays, with its position.
--
-- Writes: webhook; see note_action.
create or replace function postbus.delete_webhook(name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _webhook postbus.webhook;
begin
    delete from postbus.webhook w where w.name = delete_webhook.name returning w.* into _webhook;
    if not found then
        perform postbus.refuse('PB445', format('there is no webhook %L', delete_webhook.name), 'list them: GET /v1/webhooks');
    end if;
    perform postbus.note_action('webhook.delete', _webhook.topic, _webhook.group_name, _webhook.name, before => postbus.webhook_facts(_webhook));
end $$;
