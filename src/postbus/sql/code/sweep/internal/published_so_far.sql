-- How many messages were published to all existing PUB_SUB topics, as the sweep has counted them.
create or replace function postbus.published_so_far() returns bigint
language sql stable as $$
    select coalesce(sum(c.messages), 0)::bigint from postbus.topic_count c
$$;
