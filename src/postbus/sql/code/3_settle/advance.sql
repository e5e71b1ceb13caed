-- Moves cursors of lanes: group by group, lane by lane, all in one statement. `numbers` are those of the rows
-- that the caller appended, or got with the lane, last; each is followed by the next.
-- A cursor that has a done position gets that of the last message that the group is done with.
-- passed are the messages that the group is done with since then.
--
-- Returns the places in the arrays of lanes that are lost: somebody else has them, and nothing was changed.
--
-- Writes: cursor. Waits for a transaction that has appended the same number and is still open.
create or replace function postbus.advance(
    subscription_ids bigint[],
    lanes            integer[],
    numbers          bigint[],
    cursors          text[],
    done_positions   bigint[],
    done_indexes     integer[],
    passed           bigint[]
) returns integer[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _lost integer[];
begin
    if (split_part(current_setting('postbus.cluster', true), '/', 2) = 'postbus.cluster'::regclass::oid::text) is not true then
        perform postbus.check_cluster();
    end if;
    with given as materialized (
        select g.n, g.subscription_id, g.lane, g.number, (g.cursor)::postbus.log_cursor as cursor, g.done_position, g.done_index, g.passed
          from unnest(subscription_ids, lanes, numbers, cursors, done_positions, done_indexes, advance.passed)
               with ordinality as g (subscription_id, lane, number, cursor, done_position, done_index, passed, n)
    ), advanced as (
        insert into postbus.cursor (subscription_id, lane, number, cursor, passed, worker)
        select g.subscription_id, g.lane, g.number + 1,
               row((g.cursor).seen, (g.cursor).target, coalesce(g.done_position, (g.cursor).done_position),
                   coalesce(g.done_index, (g.cursor).done_index), (g.cursor).since_bound, (g.cursor).since_at,
                   (g.cursor).since_id, (g.cursor).until, (g.cursor).since_snapshot)::postbus.log_cursor,
               before.passed + g.passed, before.worker
          from given g
          join postbus.cursor before
            on before.subscription_id = g.subscription_id and before.lane = g.lane and before.number = g.number
         order by g.subscription_id, g.lane
        on conflict do nothing
        returning subscription_id, lane
    )
    select array_agg(g.n::integer order by g.n) into _lost
      from given g
     where not exists (select from advanced a where a.subscription_id = g.subscription_id and a.lane = g.lane);
    return coalesce(_lost, array[]::integer[]);
end $$;
