-- Changes a webhook: fields that are null stay as they are.
--
-- Writes: webhook; see note_change.  Locks: its row.
create or replace function postbus.set_webhook(
    name        text,
    url         text default null,
    secret      text default null,
    concurrency integer default null,
    timeout     interval default null,
    enabled     boolean default null
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _webhook postbus.webhook;
    _before  postbus.webhook;
begin
    select * into _webhook from postbus.webhook w where w.name = set_webhook.name for update;
    if not found then
        perform postbus.refuse('PB445', format('there is no webhook %L', set_webhook.name), 'list them: GET /v1/webhooks');
    end if;
    _before := _webhook;
    _webhook.url := coalesce(set_webhook.url, _webhook.url);
    _webhook.secret := coalesce(set_webhook.secret, _webhook.secret);
    _webhook.concurrency := coalesce(set_webhook.concurrency, _webhook.concurrency);
    _webhook.timeout := coalesce(set_webhook.timeout, _webhook.timeout);
    _webhook.enabled := coalesce(set_webhook.enabled, _webhook.enabled);
    perform postbus.check_webhook(_webhook);
    update postbus.webhook w
       set url = _webhook.url, secret = _webhook.secret, concurrency = _webhook.concurrency, timeout = _webhook.timeout,
           enabled = _webhook.enabled, changed_at = clock_timestamp()
     where w.name = set_webhook.name;
    perform postbus.note_change(
        'webhook.set', postbus.webhook_facts(_before),
        postbus.webhook_facts(_webhook) || case when _webhook.url <> _before.url then '{"new_url": true}' else '{}' end::jsonb
            || case when _webhook.secret <> _before.secret then '{"new_secret": true}' else '{}' end::jsonb,
        _webhook.topic, _webhook.group_name, _webhook.name);
end $$;
