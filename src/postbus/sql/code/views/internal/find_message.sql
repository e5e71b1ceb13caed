-- Finds a message of the log: its segment, and its index there. Refuses a message that is not there.
create or replace function postbus.find_message(
    topic            text,
    id               bigint,
    out topic_id     bigint,
    out lane         integer,
    out sequence     bigint,
    out txid         xid8,
    out index        integer,
    out count        integer,
    out published_at timestamptz
)
language plpgsql stable as $$
declare
    _topic postbus.topic := postbus.topic_options(topic);
begin
    topic_id := _topic.id;
    index := find_message.id & 1023;
    find_message.sequence := postbus.sequence_of(_topic, id);
    if find_message.sequence is null then
        perform postbus.refuse('PB405', format('topic %L has no message %s', topic, id),
            'it was dropped when its retention had passed, or never was there');
    end if;
    execute format('select s.lane, s.txid, s.count, s.published_at from postbus.%I s where s.topic_id = $1 and s.sequence = $2',
                   postbus.partition_name(_topic.storage_id, (find_message.sequence >> 43)::integer))
       into find_message.lane, find_message.txid, find_message.count, find_message.published_at
      using _topic.id, find_message.sequence;
end $$;
