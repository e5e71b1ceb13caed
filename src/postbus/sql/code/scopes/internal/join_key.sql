-- Adds a key of a topic, or all other keys, to those of a group, from the start that a record gives. Messages between that start
-- and the group's position are added at once, as deferred messages, one after the other per key. Messages of other keys before its
-- position are skipped.
--
-- A group that has all keys already keeps its messages: only those that its own start has left out are added. More than beside_from
-- messages are refused, because they would be copied.
--
-- Processes that consume for the group lose its lanes, and take them again with the new keys: they read again the messages that
-- they have passed since they last advanced.
--
-- Writes: subscription, deferred, settled_ahead; see move_cursors.  Locks: lane rows.
create or replace function postbus.join_key(subscription postbus.subscription, topic postbus.topic, scope postbus.scope) returns void
language plpgsql as $$
declare
    _wanted    postbus.log_cursor := postbus.scope_cursor(scope, topic);
    _most      bigint := postbus.catch_up_options(subscription.catch_up) ->> 'beside_from';
    _count     bigint := 0;
    _partition integer;
    _more      bigint;
begin
    perform postbus.move_cursors(subscription.id, null, null);
    update postbus.subscription s set keys = case when scope.key is not null and s.keys is not null then s.keys || scope.key end
     where s.id = subscription.id;
    for _partition in select l.epoch from postbus.log_partition l where l.storage_id = topic.storage_id order by l.epoch loop
        continue when not postbus.lock_partition(topic.storage_id, _partition);
        if subscription.keys is not null then     -- a holder that left lanes has noted what it passed, also messages that are wanted now
            execute format(
                'with wanted as (
                    select s.lane, s.sequence, range_agg(int4range(m.n - 1, m.n)) as indexes
                      from postbus.settled_ahead own
                      join postbus.%I s on s.sequence = own.sequence and s.lane = own.lane and s.topic_id = $1
                     cross join lateral generate_series(1, s.count) as m (n)
                     where own.subscription_id = $2 and case when $4 is null then (s.keys[m.n] <> all ($5)) is not false else s.keys[m.n] = $4 end
                       and m.n > s.count - postbus.unseen_in_segment($3, s.sequence, s.txid, s.count, s.published_at)
                     group by s.lane, s.sequence
                 )
                 update postbus.settled_ahead own set indexes = own.indexes - wanted.indexes
                   from wanted
                  where own.subscription_id = $2 and own.lane = wanted.lane and own.sequence = wanted.sequence',
                    postbus.partition_name(topic.storage_id, _partition))
              using topic.id, subscription.id, _wanted, scope.key, subscription.keys;
        end if;
        execute format(
            'with message as (
                select s.lane, s.sequence, postbus.first_id(s.sequence) + m.n - 1 as id, s.published_at, m.key, m.correlation_id,
                       coalesce(m.content_type, s.content_type) as content_type, m.headers, m.payload,
                       m.n > s.count - postbus.unseen_in_segment($3, s.sequence, s.txid, s.count, s.published_at) as is_wanted,
                       postbus.is_past(c.cursor, s.sequence, s.txid, m.n::integer - 1, s.count, s.published_at) as is_passed
                  from postbus.%I s
                  join postbus.current_cursor c on c.subscription_id = $2 and c.lane = s.lane
                 cross join lateral unnest(postbus.payloads_of(s.payloads, s.count, s.in_lines), s.keys, s.correlation_ids, s.content_types,
                                           s.headers)
                            with ordinality as m (payload, key, correlation_id, content_type, headers, n)
                 where s.topic_id = $1 and case when $4 is null then (m.key <> all ($5)) is not false else m.key = $4 end
                   and ($5 is not null or postbus.is_past($6, s.sequence, s.txid, m.n::integer - 1, s.count, s.published_at))
             ), passed_by as (
                insert into postbus.settled_ahead as known (subscription_id, lane, sequence, indexes)
                select $2, m.lane, m.sequence, range_agg(int4range((m.id & 1023)::integer, (m.id & 1023)::integer + 1))
                  from message m where not m.is_wanted and not m.is_passed and $5 is not null
                 group by m.lane, m.sequence
                on conflict on constraint settled_ahead_pkey do update set indexes = known.indexes + excluded.indexes
             ), added as (
                insert into postbus.deferred (subscription_id, lane, id, sequence, parked, published_at, key, correlation_id, content_type,
                                              headers, payload)
                select $2, m.lane, m.id, m.sequence, m.key is not null, m.published_at, m.key, m.correlation_id, m.content_type,
                       m.headers, m.payload
                  from message m where m.is_wanted and m.is_passed
                on conflict on constraint deferred_pkey do nothing
                returning 1
             )
             select count(*) from added', postbus.partition_name(topic.storage_id, _partition))
          into _more
         using topic.id, subscription.id, _wanted, scope.key, subscription.keys, subscription.started;
        _count := _count + _more;
        if _count > _most then
            perform postbus.refuse('PB402',
                format('the key cannot be added: group %L has passed more than %s messages of topic %L since the start of the key',
                       subscription.group_name, _most, topic.name),
                'use a group of its own for the key, let the key begin later, or raise beside_from of the group''s catch_up');
        end if;
    end loop;
    perform postbus.unpark_all(subscription.id);
    perform pg_notify('postbus', topic.id::text);
end $$;
