-- The groups that a message of the log is required for, those that are done with it, and its status: see state_of.
create or replace function postbus.message_state(
    topic          text,
    id             bigint,
    out required   text[],
    out completed  text[],
    out status     text,
    out settled_at timestamptz
)
language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select s.required, s.completed, s.status, s.settled_at
      from postbus.find_message(message_state.topic, message_state.id) as m
     cross join lateral postbus.state_of(m.topic_id, m.lane, m.position, m.txid, m.count, m.published_at, m.index, m.index) as s
$$;
