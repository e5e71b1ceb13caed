-- Acknowledges all open messages of leases. Returns the tokens of leases that are lost.
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
    _found uuid[];
    _kept  uuid[];
begin
    _found := array(select l.token from postbus.lease l where l.token = any (tokens) order by l.token for update);
    _kept := array(select l.token from postbus.lease l
                     left join postbus.topic t on t.id = l.topic_id
                    where l.token = any (_found) and (l.ordered or t.retention > interval '0'));
    if cardinality(_kept) > 0 then      -- otherwise the messages need not even be read
        perform postbus.keep_finished(part.topic_id, min(part.member), bool_or(part.ordered), array_agg(part.message order by part.token))
           from (select l.topic_id, l.token, l.member, l.ordered, message,        -- rows of 16 MiB, or one message: see append_many
                        sum(length(message.payload) + postbus.headers_size(message.headers))
                            over (partition by l.topic_id order by l.token, message.id) / 16777216 as n
                   from postbus.lease l
                  cross join unnest(l.messages) as message
                  where l.token = any (_kept) and message.id = any (l.open_ids)) as part
          group by part.topic_id, part.n;
    end if;
    delete from postbus.lease l where l.token = any (_found);
    return array(select wanted.token from unnest(tokens) as wanted (token)
                  where wanted.token <> all (_found)
                    and not exists (select from postbus.settle_popped(wanted.token, null, 'done', null, null, null, null, clock_timestamp())));
end $$;
