-- The groups that are required for a message of the log, those that have completed it, and its status: see states.
create or replace function postbus.message_state(
    topic          text,
    id             bigint,
    out required   text[],
    out completed  text[],
    out status     text,
    out settled_at timestamptz
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
    select s.required, s.completed, s.status into required, completed, status
      from postbus.states(_topic.id, array[_segment],
                          postbus.message_facts(_topic, (_segment.sequence >> 43)::integer, message_state.id, message_state.id)) as s
     where _found.index between s.first_index and s.last_index;
    required := coalesce(required, '{}');
    completed := coalesce(completed, '{}');
    status := coalesce(status, 'PENDING');
    settled_at := postbus.settled_at(_topic.id, _segment, _found.index, required, completed, status);
end $$;
