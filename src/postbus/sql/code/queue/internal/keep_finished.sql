-- Keeps settled messages if the topic has a retention, and passes their keys on if it is ordered.
--
-- Writes: finished; see pass_keys.
create or replace function postbus.keep_finished(
    topic_id bigint,
    member   text,
    ordered  boolean,
    messages postbus.queue_message[]
) returns void
language plpgsql as $$
begin
    if exists (select from postbus.topic t where t.id = keep_finished.topic_id and t.retention > interval '0') then
        insert into postbus.finished (topic_id, member, messages)
        values (keep_finished.topic_id, keep_finished.member, keep_finished.messages);
    end if;
    if ordered then
        perform postbus.pass_keys(topic_id, array(select m.id from unnest(messages) as m),
                                  array(select distinct m.key from unnest(messages) as m));
    end if;
end $$;
