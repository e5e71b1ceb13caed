-- What the audit log shows of a webhook: not its secret, and of its address nothing after the host.
create or replace function postbus.webhook_facts(webhook postbus.webhook) returns jsonb
language sql stable as $$
    select jsonb_build_object('url', postbus.url_origin(webhook.url), 'concurrency', webhook.concurrency, 'timeout', webhook.timeout,
                              'enabled', webhook.enabled)
$$;
