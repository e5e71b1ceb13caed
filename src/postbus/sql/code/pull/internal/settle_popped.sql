-- Settles messages that a pop of a group has in hand, all of them if no ids are given: 'done', 'retry', 'dead', or 'release',
-- which does not count the attempt. Returns for each message 'done', 'retried', 'dead', 'released' or 'lost'.
--
-- Writes: deferred, dead_letter, receipt, group_tally; see note_signs_of_life.  Locks: rows of deferred.
create or replace function postbus.settle_popped(
    token        uuid,
    ids          bigint[],
    outcome      text,
    delay        interval,
    error        text,
    reason       text,
    max_attempts integer,
    as_of        timestamptz
) returns table (message_id bigint, became text)
language plpgsql as $$
declare
    _done     bigint[] := '{}';
    _back     bigint[] := '{}';
    _dead     bigint[] := '{}';
    _lines    jsonb;       -- keys that go on, since the group lets others pass
    _group_id bigint := (select coalesce(s.catch_up_of, s.id)
                           from (select r.subscription_id from postbus.deferred r where r.token = settle_popped.token limit 1) as one
                           join postbus.subscription s on s.id = one.subscription_id);
begin
    perform postbus.note_signs_of_life(array[token], as_of);
    if outcome = 'done' then
        _done := postbus.finish_popped(token, ids, false, null, null, as_of);
    elsif outcome = 'dead' then
        _dead := postbus.finish_popped(token, ids, true, reason, error, as_of);
    else
        -- All messages of the token are locked (hence the offset): those behind a failed one go back, too.
        select coalesce(array_agg(r.id) filter (where outcome = 'release' or r.attempts < limits.most), '{}'),
               coalesce(array_agg(r.id) filter (where outcome = 'retry' and r.attempts >= limits.most), '{}'),
               jsonb_agg(jsonb_build_object('subscription_id', s.id, 'lane', r.lane, 'key', r.key))
                   filter (where s.on_failure = 'pass' and r.key is not null)
          into _back, _dead, _lines
          from (select * from postbus.deferred r where r.token = settle_popped.token order by r.sequence, r.id offset 0 for update) as r
          join postbus.subscription s on s.id = r.subscription_id
          join postbus.topic t on t.id = s.topic_id
         cross join lateral (select least(settle_popped.max_attempts, t.max_attempts) as most) as limits
         where ids is null or r.id = any (ids);
        perform postbus.finish_popped(token, _dead, true, reason, error, as_of) where cardinality(_dead) > 0;
        perform postbus.give_back_popped(token, _back, outcome = 'release', delay, error, as_of) where cardinality(_back) > 0;
        perform postbus.unpark_next(line.subscription_id, line.lane, array_agg(distinct line.key), as_of)
           from jsonb_to_recordset(_lines) as line (subscription_id bigint, lane integer, key text)
          group by line.subscription_id, line.lane;
    end if;
    if outcome <> 'release' and cardinality(_done || _dead || _back) > 0 then
        insert into postbus.group_tally (subscription_id, at, handled, failed)
        values (_group_id, as_of, cardinality(_done), cardinality(_dead || _back));
    end if;
    return query
    select one.id, 'done' from unnest(_done) as one (id)
    union all
    select one.id, 'dead' from unnest(_dead) as one (id)
    union all
    select one.id, case outcome when 'release' then 'released' else 'retried' end from unnest(_back) as one (id)
    union all
    select one.id, 'lost' from unnest(ids) as one (id) where one.id <> all (_done || _dead || _back);
end $$;
