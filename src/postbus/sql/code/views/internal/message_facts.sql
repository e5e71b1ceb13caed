-- The facts about single messages of a topic beside the stretches of its groups: deferred messages, dead letters, and messages that
-- were settled one by one. About all messages; or about those from one id to another in a partition, and then with receipts that
-- say nothing beyond the stretch.
--
--   RETRYING, WAITING, PENDING      in `deferred`: failed; parked; or to be popped, or in hand of a pop
--   COMPLETED, DEAD                 its receipt says so
--   LETTER                          a dead letter; if its stretch is known, its receipt says the rest
--   AHEAD                           settled ahead of the cursor
--   ABANDONED, SKIPPED              it was waiting when the group ended, or when the group's cursor was set past it
create or replace function postbus.message_facts(
    topic   postbus.topic,
    epoch   integer default null,
    from_id bigint default null,
    to_id   bigint default null
) returns postbus.message_fact[]
language plpgsql stable
set enable_seqscan = off as $$
declare
    _groups jsonb := (select coalesce(jsonb_object_agg(st.subscription_id, st.group_name), '{}')
                        from (select distinct st.subscription_id, st.group_name from postbus.stretch st where st.topic_id = topic.id) as st);
    _ids    bigint[] := array(select key::bigint from jsonb_object_keys(_groups) as key order by 1);
    _found  postbus.message_fact[];
    _kept   postbus.message_fact[];
begin
    _found := array(
        select row(r.id, r.subscription_id, _groups ->> r.subscription_id::text, r.stretch,
                   case when r.token is not null or r.buffered and r.attempts = 0 then 'PENDING' when r.parked then 'WAITING' else 'RETRYING' end,
                   null, null, r.member, r.attempts, r.last_error)::postbus.message_fact
          from unnest(_ids) as part (id)
          join postbus.lane l on l.subscription_id = part.id
          join postbus.deferred r on r.subscription_id = l.subscription_id and r.lane = l.lane
         where from_id is null or r.id between from_id and to_id
         union all
        select row(one.id, a.subscription_id, _groups ->> a.subscription_id::text, null, 'AHEAD', null, null, null, null, null)::postbus.message_fact
          from unnest(_ids) as part (id)
          join postbus.lane l on l.subscription_id = part.id
          join postbus.settled_ahead a on a.subscription_id = l.subscription_id and a.lane = l.lane
           and (from_id is null or postbus.first_id(a.sequence) between from_id - 1023 and to_id)
         cross join lateral (select postbus.first_id(a.sequence) + index as id
                               from unnest(a.indexes) as run, generate_series(lower(run), upper(run) - 1) as index) as one
         where from_id is null or one.id between from_id and to_id
         union all
        select row(d.id, d.subscription_id, _groups ->> d.subscription_id::text, d.stretch, 'LETTER', null, d.died_at, null, d.attempts,
                   coalesce(d.last_error, d.reason))::postbus.message_fact
          from postbus.dead_letter d
         where d.topic_id = topic.id and d.subscription_id = any (_ids) and (from_id is null or d.id between from_id and to_id));
    if from_id is null then
        _kept := array(
            select row(r.id, r.subscription_id, _groups ->> r.subscription_id::text, r.stretch, r.outcome, r.txid, r.at, r.worker, r.attempts,
                       r.error)::postbus.message_fact
              from postbus.receipt r
             where r.storage_id = topic.storage_id and r.subscription_id = any (_ids) and r.deviates);
    else
        execute format(
            'select array(select row(r.id, r.subscription_id, $1 ->> r.subscription_id::text, r.stretch, r.outcome, r.txid, r.at, r.worker,
                                     r.attempts, r.error)::postbus.message_fact
                            from postbus.%I r where r.id between $2 and $3 and r.subscription_id = any ($4))',
            format('receipt_%s_%s', topic.storage_id, epoch))
          into _kept
         using _groups, from_id, to_id, _ids;
    end if;
    return _found || _kept;
end $$;
