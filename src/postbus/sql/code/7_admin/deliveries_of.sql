-- What became of one message of the log at every group: see delivery.
create or replace function postbus.deliveries_of(topic text, id bigint) returns table (
    subscription_id bigint,
    group_name      text,
    required        boolean,
    status          text,
    settled_at      timestamptz,
    worker          text,
    attempts        integer,
    last_error      text,
    holder          text
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select d.subscription_id, d.group_name, d.required, d.status, d.settled_at, d.worker, d.attempts, d.last_error, d.holder
      from postbus.find_message(deliveries_of.topic, deliveries_of.id) as m
     cross join lateral postbus.delivery(m.topic_id, m.lane, m.position, m.txid, m.count, m.published_at, m.index, m.index) as d
     order by d.group_name
$$;
