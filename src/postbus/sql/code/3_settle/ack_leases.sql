-- Finishes all that is open in leases. Returns the tokens of those that are lost.
--
-- Writes: lease; see keep_finished.  Locks: lease rows in the order of their tokens, then busy_key.
create or replace function postbus.ack_leases(tokens uuid[]) returns uuid[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _held uuid[];
    _kept uuid[];
begin
    _held := array(select l.token from postbus.lease l where l.token = any (tokens) order by l.token for update);
    _kept := array(select l.token from postbus.lease l
                     left join postbus.topic t on t.id = l.topic_id
                    where l.token = any (_held) and (l.ordered or t.retention > interval '0'));
    if cardinality(_kept) > 0 then      -- else the messages need not even be read
        perform postbus.keep_finished(l.topic_id, min(l.member), bool_or(l.ordered), array_agg(message order by l.token))
           from postbus.lease l
          cross join unnest(l.messages) as message
          where l.token = any (_kept) and message.id = any (l.open_ids)
          group by l.topic_id;
    end if;
    delete from postbus.lease l where l.token = any (_held);
    return array(select wanted.token from unnest(tokens) as wanted (token)
                  where wanted.token <> all (_held)
                    and not exists (select from postbus.settle_shelved(wanted.token, null, 'done', null, null, null, null, clock_timestamp())));
end $$;
