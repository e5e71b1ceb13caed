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
    select d.*
      from postbus.find_message(deliveries_of.topic, deliveries_of.id) as m
     cross join lateral postbus.delivery(m.topic_id, deliveries_of.id, m.lane, m.position, m.txid, m.index, m.count, m.published_at) as d
     order by d.group_name
$$;
