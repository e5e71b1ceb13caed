-- The deliveries of one message of the log to all groups, including groups that have ended: see delivery_statuses and delivery.
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
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic   postbus.topic := postbus.topic_options(topic);
    _found   record;
    _segment postbus.segment_ref;
begin
    select * into _found from postbus.find_message(topic, id);
    _segment := row(_found.sequence, _found.lane, _found.txid, _found.count, _found.published_at)::postbus.segment_ref;
    return query
        select f.subscription_id, f.group_name, f.required, f.status, d.settled_at, d.worker, d.attempts, d.last_error, d.holder
          from postbus.delivery_statuses(_topic.id, array[_segment],
                             postbus.message_facts(_topic, (_segment.sequence >> 43)::integer, deliveries_of.id, deliveries_of.id)) as f
         cross join lateral postbus.delivery(_topic, _segment, _found.index, f.group_name, f.status, f.is_before) as d
         where _found.index between f.first_index and f.last_index
           and (f.required or f.status <> 'SKIPPED' or exists (select from postbus.subscription living
                                                                where living.id = f.subscription_id and living.state <> 'CANCELLED'))
         order by f.group_name;
end $$;
