-- Adds a webhook: the HTTP servers send it the messages of a group or a queue.
--
-- Writes: webhook; see note_action.
create or replace function postbus.create_webhook(
    name        text,
    topic       text,
    url         text,
    secret      text,
    group_name  text default null,
    concurrency integer default 4,
    timeout     interval default '10 seconds',
    enabled     boolean default true
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _webhook postbus.webhook;
begin
    _webhook := row(name, topic, group_name, url, secret, concurrency, timeout, enabled, clock_timestamp(), clock_timestamp());
    perform postbus.check_webhook(_webhook);
    begin
        insert into postbus.webhook values (_webhook.*);
    exception when unique_violation then
        perform postbus.refuse('PB446', format('a webhook %L, or of the same consumer, exists already', create_webhook.name),
            'change that webhook, or name another group');
    end;
    perform postbus.note_action('webhook.create', topic, group_name, create_webhook.name, after => postbus.webhook_facts(_webhook));
end $$;
