-- Removes messages that a pop has in hand from the pull buffer, because they are done or given up: those with these ids, or all
-- with the token. Messages parked behind them become due. Returns the ids of the removed ones.
--
-- The group may still read some from the log, which a worker deferred ahead of the cursor: see note_settled_ahead.
--
-- Writes: deferred, dead_letter, receipt, settled_ahead.  Locks: rows of deferred, in the order of sequences.
create or replace function postbus.finish_popped(token uuid, ids bigint[], is_dead boolean, reason text, error text, as_of timestamptz)
returns bigint[]
language plpgsql as $$
declare
    _tids tid[];
    _ids  bigint[] := '{}';
    _line record;
begin
    -- In a statement of its own: a row that was changed while this waited for its lock is elsewhere by now, where only a later
    -- statement sees it.
    _tids := array(select mine.ctid from postbus.deferred mine
                    where mine.token = finish_popped.token and (finish_popped.ids is null or mine.id = any (finish_popped.ids))
                    order by mine.sequence, mine.id for update);
    for _line in
        with gone as (
            delete from postbus.deferred r where r.ctid = any (_tids)
            returning r.subscription_id, r.lane, r.id, r.key, r as message
        )
        select g.subscription_id, g.lane, t as topic, array_agg(g.id) as ids, array_agg(distinct g.key) filter (where g.key is not null) as keys,
               array_agg(g.message) filter (where is_dead) as messages, array_agg((g.message).sequence) as sequences,
               array_agg((g.message).attempts) as attempts, array_agg(coalesce(finish_popped.error, (g.message).last_error)) as errors,
               array_agg((g.message).member) as members, array_agg((g.message).stretch) as stretches,
               array_agg(g.id) filter (where not (g.message).buffered) as unbuffered,
               array_agg((g.message).sequence) filter (where not (g.message).buffered) as unbuffered_sequences
          from gone g
          join postbus.subscription s on s.id = g.subscription_id
          join postbus.topic t on t.id = s.topic_id
         group by g.subscription_id, g.lane, t
    loop
        if is_dead then
            insert into postbus.dead_letter (id, subscription_id, topic_id, died_at, reason, last_error, published_at, attempts, priority, key,
                                             correlation_id, content_type, headers, payload, stretch)
            select m.id, postbus.group_of(m.subscription_id), (_line.topic).id, as_of,
                   left(coalesce(finish_popped.reason, format('gave up after %s attempt%s', m.attempts, case when m.attempts > 1 then 's' end)),
                        1000),
                   left(coalesce(finish_popped.error, m.last_error), 4000), m.published_at, m.attempts, 4, m.key, m.correlation_id,
                   m.content_type, m.headers, m.payload, m.stretch
              from unnest(_line.messages) as m
            on conflict do nothing;
        end if;
        perform postbus.keep_receipt(_line.topic, _line.subscription_id, _line.lane, _line.ids, _line.sequences,
                                     array(select case when is_dead then 'DEAD' else 'COMPLETED' end from unnest(_line.ids)),
                                     _line.attempts, _line.errors, _line.members, _line.stretches, as_of);
        if _line.unbuffered is not null then
            perform postbus.note_settled_ahead(_line.subscription_id, _line.lane, _line.unbuffered, _line.unbuffered_sequences);
        end if;
        if _line.keys is not null then
            perform postbus.check_isolation();
            perform postbus.unpark_next(_line.subscription_id, _line.lane, _line.keys, as_of);
        end if;
        _ids := _ids || _line.ids;
    end loop;
    return _ids;
end $$;
