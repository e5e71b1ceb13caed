-- How long a storage keeps its messages: for its topics, and at most. Topics without a live group keep them for
-- zero_subscription_retention, if that is longer.
create or replace function postbus.log_retention(storage_id integer, out keeps interval, out most interval)
language sql stable as $$
    select coalesce(max(case when exists (select from postbus.subscription s where s.topic_id = t.id and s.state in ('ACTIVE', 'PAUSED'))
                             then t.retention else greatest(t.retention, t.zero_subscription_retention) end), interval '0'),
           coalesce(max(t.max_retention), interval '0')
      from postbus.topic t where t.storage_id = log_retention.storage_id
$$;
