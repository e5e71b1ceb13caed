-- Refuses a webhook that could not work.
create or replace function postbus.check_webhook(webhook postbus.webhook) returns void
language plpgsql as $$
declare
    _topic postbus.topic := postbus.topic_options(webhook.topic);
begin
    if coalesce(webhook.name, '') !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}$' then
        perform postbus.refuse('PB401', format('bad name of a webhook %s', coalesce(quote_literal(left(webhook.name, 220)), 'null')),
            'a name has 1 to 200 letters, digits or . _ - : and starts with a letter, a digit or _');
    elsif coalesce(webhook.url, '') !~* '^https?://[^/[:space:]@?#]+([/?#][^[:space:]]*)?$' or length(webhook.url) > 2000 then
        perform postbus.refuse('PB402', 'the url of a webhook is not one of http or https',
            'give one such as https://example.org/hook, without a login');
    elsif coalesce(length(webhook.secret), 0) not between 16 and 200 then
        perform postbus.refuse('PB402', 'the secret of a webhook is too short or too long', 'give 16 to 200 characters, or leave secret out');
    elsif webhook.concurrency is null or webhook.concurrency not between 1 and 100 then
        perform postbus.refuse('PB402', format('concurrency %s of a webhook is out of range', webhook.concurrency), 'give 1 to 100');
    elsif webhook.timeout is null or webhook.timeout not between interval '0.1 seconds' and interval '5 minutes' then
        perform postbus.refuse('PB402', format('timeout %s of a webhook is out of range', webhook.timeout), 'give 0.1 to 300 seconds');
    elsif webhook.enabled is null then
        perform postbus.refuse('PB402', 'enabled of a webhook is null', 'give true or false');
    end if;
    if webhook.group_name is not null then
        perform postbus.check_group_name(webhook.group_name);
        perform postbus.check_is_log(_topic, webhook.topic, webhook.group_name);
    elsif _topic.storage_id is not null then
        perform postbus.refuse('PB432', format('topic %L is PUB_SUB', webhook.topic), 'name the group that the webhook is for');
    end if;
end $$;
