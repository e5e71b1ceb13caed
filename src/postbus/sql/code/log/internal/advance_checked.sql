-- Moves the cursors that `advance` has not moved, at the indexes `positions` of its arrays: their lanes are lost, or they need the
-- full check, since another partition has begun, or they have an end or a beginning. The other parameters are those of advance.
--
-- Returns the indexes of lanes that are lost. Refuses cursors that go back, or to a position in the future: see may_follow.
--
-- Writes: cursor.
create or replace function postbus.advance_checked(
    subscription_ids bigint[],
    lanes            integer[],
    tokens           uuid[],
    numbers          bigint[],
    cursors          text[],
    done_sequences   bigint[],
    done_indexes     integer[],
    passed           bigint[],
    positions        integer[]
) returns integer[]
language plpgsql as $$
declare
    _lost  integer[];
    _wrong integer[];
begin
    with last as materialized (
        select coalesce(pg_sequence_last_value('postbus.segment_number'), 0) as number, pg_current_xact_id() as xid
    ), given as materialized (
        select g.n, g.subscription_id, g.lane, g.token, g.number, g.done_sequence, g.done_index, g.passed,
               octet_length(g.cursor) as size, (g.cursor)::postbus.log_cursor as cursor
          from unnest(subscription_ids, lanes, tokens, numbers, cursors, done_sequences, done_indexes, advance_checked.passed)
               with ordinality as g (subscription_id, lane, token, number, cursor, done_sequence, done_index, passed, n)
         where g.n = any (positions)
    ), owned as materialized (
        select g.n, g.subscription_id, g.lane, g.number, g.passed, g.size, before.passed as passed_before, before.worker, before.cursor as before,
               row((g.cursor).seen, (g.cursor).target, coalesce(g.done_sequence, (g.cursor).done_sequence),
                   coalesce(g.done_index, (g.cursor).done_index), (g.cursor).since_bound, (g.cursor).since_at,
                   (g.cursor).since_id, (g.cursor).until, (g.cursor).since_snapshot)::postbus.log_cursor as cursor
          from given g
          join postbus.lane l on l.subscription_id = g.subscription_id and l.lane = g.lane and l.token = g.token
          join postbus.cursor before
            on before.subscription_id = g.subscription_id and before.lane = g.lane and before.number = g.number
    ), judged as materialized (
        select o.*, postbus.may_follow(o.cursor, o.before, last.number, last.xid)
                    and o.size <= 1000000 and o.passed >= 0 and o.passed <= (last.number + 1) * 1024
                    and (postbus.last_epoch(o.cursor) <= postbus.last_epoch(o.before)
                         or postbus.last_epoch(o.cursor) <= (select postbus.epoch(t.storage_id)
                                                               from postbus.subscription s join postbus.topic t on t.id = s.topic_id
                                                              where s.id = o.subscription_id)) as is_good
          from owned o
         cross join last
    ), advanced as (
        insert into postbus.cursor (subscription_id, lane, number, cursor, passed, worker)
        select j.subscription_id, j.lane, j.number + 1, j.cursor, j.passed_before + j.passed, j.worker
          from judged j
         where j.is_good
         order by j.subscription_id, j.lane
        on conflict do nothing
        returning subscription_id, lane
    )
    select (select array_agg(g.n::integer order by g.n)
              from given g
             where not exists (select from advanced a where a.subscription_id = g.subscription_id and a.lane = g.lane)),
           (select array_agg(j.n::integer order by j.n) from judged j where j.is_good is not true)
      into _lost, _wrong;
    if _wrong is not null then
        perform postbus.refuse('PB402', format('cursor %s cannot follow the current cursor of its lane', _wrong[1]),
            'advance to a cursor that read_log returned for this lane');
    end if;
    return coalesce(_lost, array[]::integer[]);
end $$;
