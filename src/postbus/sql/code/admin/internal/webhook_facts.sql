-- A webhook as the audit log shows it: without its secret, and without the part of its address after the host.
create or replace function postbus.webhook_facts(webhook postbus.webhook) returns jsonb
language sql stable as $$
    select jsonb_build_object('url', postbus.url_origin(webhook.url), 'concurrency', webhook.concurrency, 'timeout', webhook.timeout,
                              'enabled', webhook.enabled)
$$;
