-- Refuses options of a topic that make no sense.
create or replace function postbus.check_topic(topic postbus.topic) returns void
language plpgsql
set search_path = pg_catalog, pg_temp as $$
declare
    _wrong text;
begin
    _wrong := case
        when topic.semantics not in ('QUEUE') then format('semantics %L is not known; use ''QUEUE''', topic.semantics)
        when topic.lease < interval '1 second' or topic.lease > interval '1 day' then 'lease goes from 1 second to 1 day'
        when topic.max_attempts not between 1 and 10000 then 'max_attempts goes from 1 to 10000'
        when topic.retry_initial < interval '0' then 'retry_initial is not negative'
        when topic.retry_max < topic.retry_initial then 'retry_max is not less than retry_initial'
        when topic.retry_factor not between 1 and 100 then 'retry_factor goes from 1 to 100'
        when topic.retry_jitter not between 0 and 1 then 'retry_jitter goes from 0 to 1'
        when topic.retention < interval '0' then 'retention is not negative'
        when topic.dedup_window <= interval '0' then 'dedup_window is positive'
        when topic.max_payload_bytes not between 1 and 67108864 then 'max_payload_bytes goes from 1 to 67108864 (64 MiB)'
    end;
    if _wrong is not null then
        perform postbus.refuse('PB402', format('bad option of topic %L', topic.name), _wrong);
    end if;
end $$;
