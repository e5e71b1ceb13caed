-- Moves the cursors of lanes, of any groups, in one statement. `tokens` prove that the caller holds the lanes. `numbers` are those
-- of the ledger rows that the caller last inserted, or got with the lane: the new rows get the next numbers. done_sequences and
-- done_indexes, where they are not null, name the last message of the step that the group is done with. `passed` counts the
-- messages that the group is done with since its last row.
--
-- Returns the indexes in the arrays of lanes that are lost: another process has them, and nothing was changed. Refuses cursors that
-- go back, or to a position in the future: see may_follow. For most cursors a short check suffices.
--
-- Writes: cursor; see advance_checked. Waits for a transaction that has appended the same number and is still open.
create or replace function postbus.advance(
    subscription_ids bigint[],
    lanes            integer[],
    tokens           uuid[],
    numbers          bigint[],
    cursors          text[],
    done_sequences   bigint[],
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
        select g.n, g.subscription_id, g.lane, g.token, g.number, octet_length(g.cursor) as size, (g.cursor)::postbus.log_cursor as cursor,
               g.done_sequence, g.done_index, g.passed
          from unnest(subscription_ids, lanes, tokens, numbers, cursors, done_sequences, done_indexes, advance.passed)
               with ordinality as g (subscription_id, lane, token, number, cursor, done_sequence, done_index, passed, n)
    ), advanced as (
        insert into postbus.cursor (subscription_id, lane, number, cursor, passed, worker)
        select g.subscription_id, g.lane, g.number + 1,
               row((g.cursor).seen, (g.cursor).target, coalesce(g.done_sequence, (g.cursor).done_sequence),
                   coalesce(g.done_index, (g.cursor).done_index), (g.cursor).since_bound, (g.cursor).since_at,
                   (g.cursor).since_id, (g.cursor).until, (g.cursor).since_snapshot)::postbus.log_cursor,
               before.passed + g.passed, before.worker
          from given g
          join postbus.lane l on l.subscription_id = g.subscription_id and l.lane = g.lane and l.token = g.token
          join postbus.cursor before
            on before.subscription_id = g.subscription_id and before.lane = g.lane and before.number = g.number
         -- The rules of may_follow, for cursors that need no full check.
         where ((g.cursor).seen).sequence >= 0
           and ((g.cursor).seen).txid <= pg_current_xact_id()
           and pg_snapshot_xmax(((g.cursor).seen).snapshot)
               between pg_snapshot_xmax(((before.cursor).seen).snapshot) and pg_current_xact_id()
           and greatest(((g.cursor).seen).sequence, ((g.cursor).target).sequence, (g.cursor).done_sequence, g.done_sequence)
               <= (((before.cursor).seen).sequence >> 43 << 43) + (select pg_sequence_last_value('postbus.segment_number'))
           and case
                   when (g.cursor).target is not distinct from null then num_nonnulls((g.cursor).done_sequence, g.done_sequence) = 0
                   else ((g.cursor).target).sequence >= 0 and ((g.cursor).target).txid <= pg_current_xact_id()
                        and pg_snapshot_xmax(((g.cursor).target).snapshot) <= pg_current_xact_id()
                        and coalesce(g.done_sequence, (g.cursor).done_sequence) >= 0 and coalesce(g.done_index, (g.cursor).done_index) >= -1
               end
           and num_nonnulls((g.cursor).since_bound, (g.cursor).since_at, (g.cursor).since_id, (g.cursor).until, (g.cursor).since_snapshot,
                            (before.cursor).since_id, (before.cursor).until) = 0
           and g.passed between 0 and 1000000000 and g.size <= 1000000
         order by g.subscription_id, g.lane
        on conflict do nothing
        returning subscription_id, lane
    )
    select array_agg(g.n::integer order by g.n) into _lost
      from given g
     where not exists (select from advanced a where a.subscription_id = g.subscription_id and a.lane = g.lane);
    if _lost is null then
        return '{}';
    end if;
    return postbus.advance_checked(subscription_ids, lanes, tokens, numbers, cursors, done_sequences, done_indexes, passed, _lost);
end $$;
