-- How many messages were published to all PUB_SUB topics that there are, as counted behind the publishers.
create or replace function postbus.published_so_far() returns bigint
language sql stable as $$
    select coalesce(sum(c.messages), 0)::bigint from postbus.topic_count c
$$;
