-- Publishes dead letters of a topic again, to the queue or to their group alone, with their attempts at zero. Those of a queue that
-- became PUB_SUB go to the group that is named. Takes those with the given ids, or those that match the filters, the oldest first.
-- Returns their number; with dry_run it only counts them.
--
-- With a rate they become due spread over time: `rate` messages per second. Ids that are not dead letters of the topic are refused,
-- and then none is redriven.
--
-- Writes: dead_letter, receipt, queued, delayed or deferred; see note_action.  Locks: dead_letter rows.
create or replace function postbus.redrive(
    topic       text,
    ids         bigint[] default null,
    reason_like text default null,
    died_after  timestamptz default null,
    died_before timestamptz default null,
    key         text default null,
    max_count   integer default null,
    rate        double precision default null,
    dry_run     boolean default false,
    group_name  text default null
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic    postbus.topic := postbus.existing_topic(topic);
    _now      timestamptz := clock_timestamp();
    _chosen   bigint[];
    _missing  text;
    _group_id bigint := 0;
    _parts    bigint[];       -- the group's subscription, and those that have read its history
begin
    if _topic.storage_id is not null then
        if group_name is null then
            perform postbus.refuse('PB402', format('topic %L is PUB_SUB: its dead letters belong to groups', topic),
                'name the group: group_name in SQL, group=NAME in Python, "group" over HTTP, --group NAME');
        end if;
        _group_id := (postbus.existing_subscription(topic, group_name)).id;
    elsif group_name is not null then
        perform postbus.refuse('PB402', format('topic %L is a QUEUE and has no groups', topic), 'leave the group out');
    end if;
    if rate <= 0 then
        perform postbus.refuse('PB402', format('rate %s is not positive', rate), 'give messages per second, or leave rate out');
    elsif max_count < 1 then
        perform postbus.refuse('PB402', format('max_count %s is less than 1', max_count), 'give 1 or more, or leave max_count out');
    end if;
    _chosen := array(
        select d.id from postbus.dead_letter d
         where d.topic_id = _topic.id and d.subscription_id in (_group_id, 0)
           and (redrive.ids is null or d.id = any (redrive.ids))
           and (reason_like is null or d.reason ilike reason_like or d.last_error ilike reason_like)
           and (died_after is null or d.died_at >= died_after)
           and (died_before is null or d.died_at < died_before)
           and (redrive.key is null or d.key = redrive.key)
         order by d.id limit max_count for update);
    select string_agg(wanted.id::text, ', ') into _missing
      from unnest(redrive.ids) as wanted (id) where wanted.id <> all (_chosen);
    if _missing is not null then
        perform postbus.refuse('PB405', format('no dead letter %s in topic %L', _missing, topic), 'list them: postbus dead-letters list ' || topic);
    end if;
    if dry_run then
        return cardinality(_chosen);
    end if;

    if cardinality(_chosen) > 0 then
        perform postbus.note_action('dead_letters.redrive', topic, group_name, affected => cardinality(_chosen), given => jsonb_build_object(
            'ids', redrive.ids[:100], 'reason_like', left(reason_like, 200), 'died_after', died_after, 'died_before', died_before,
            'key', left(redrive.key, 200), 'max_count', max_count, 'rate', rate));
    end if;
    if _group_id <> 0 then
        _parts := array(select distinct st.subscription_id from postbus.stretch st where st.topic_id = _topic.id and st.group_id = _group_id);
        -- By stretch: a message may have been given up by a subscription that read the group's history.
        with given_up as materialized (
            select r.id, max(r.stretch) filter (where r.subscription_id = _group_id and r.stretch > 0) as own,
                   bool_or(r.stretch is null) as is_unknown
              from postbus.receipt r
             where r.storage_id = _topic.storage_id and r.id = any (_chosen) and r.outcome = 'DEAD' and r.deviates
               and r.subscription_id = any (_parts) group by r.id
        ), redriven as (
            delete from postbus.dead_letter d
             where d.topic_id = _topic.id and d.id = any (_chosen) and d.subscription_id in (_group_id, 0)
            returning d.*, d.subscription_id = 0 as is_of_queue
        ), located as (
            select r.*, segment.sequence is not null as is_there,
                   coalesce(postbus.lane_of(r.key, _topic.lanes), segment.lane, ((r.id >> 10) % _topic.lanes)::integer) as lane,
                   -- A message that is gone from the log, or was in the queue, is older than all that are there.
                   case when r.is_of_queue then r.id else coalesce(segment.sequence, r.id >> 10) end as sequence
              from redriven r
              left join postbus.segment segment
                on segment.storage_id = _topic.storage_id and segment.topic_id = _topic.id
               and segment.sequence = postbus.sequence_of(_topic, r.id) and not r.is_of_queue
        )
        insert into postbus.deferred (subscription_id, lane, id, sequence, due_at, kept_from, published_at, key, correlation_id,
                                      content_type, headers, payload, stretch)
        select _group_id, l.lane, l.id, l.sequence,
               _now + coalesce(make_interval(secs => (row_number() over (order by l.id) - 1) / redrive.rate), interval '0'),
               _now, l.published_at, l.key, l.correlation_id, l.content_type, l.headers, l.payload,
               case when not l.is_there or g.is_unknown is not false then null
                    when postbus.is_ahead(_group_id, l.lane, l.id, l.sequence) then postbus.stretch_of(_group_id, l.lane)  -- passed there
                    when g.own is not null then g.own
                    else - postbus.stretch_of(_group_id, l.lane) end
          from located l left join given_up g on g.id = l.id
        on conflict on constraint deferred_pkey do nothing;
        -- No longer given up. In other stretches than the one that the message waits in, it was not settled either.
        update postbus.receipt r set outcome = 'SKIPPED', txid = pg_current_xact_id()
          from postbus.deferred w
         where r.storage_id = _topic.storage_id and r.id = any (_chosen) and r.outcome = 'DEAD' and r.deviates and r.subscription_id = any (_parts)
           and r.stretch is not null and w.subscription_id = _group_id and w.id = r.id
           and (r.subscription_id <> _group_id or r.stretch < abs(w.stretch));
        delete from postbus.receipt r
         where r.storage_id = _topic.storage_id and r.id = any (_chosen) and r.outcome = 'DEAD' and r.deviates and r.subscription_id = any (_parts);
        perform pg_notify('postbus', _topic.id::text);
        return cardinality(_chosen);
    end if;

    with redriven as (
        delete from postbus.dead_letter d where d.id = any (_chosen) and d.subscription_id = 0 returning d.*
    ), counted as (
        select redriven.*, _now + make_interval(secs => (row_number() over (order by redriven.id) - 1) / redrive.rate) as due_at from redriven
    ), at_once as (
        insert into postbus.queued (topic_id, id, published_at, priority, ordered, key, correlation_id, content_type, headers, payload)
        select c.topic_id, c.id, c.published_at, c.priority, _topic.ordered and c.key is not null, c.key, c.correlation_id,
               c.content_type, c.headers, c.payload
          from counted c where c.due_at is null order by c.id
    )
    insert into postbus.delayed (topic_id, id, due_at, published_at, priority, ordered, key, correlation_id, content_type, headers, payload)
    select c.topic_id, c.id, c.due_at, c.published_at, c.priority, _topic.ordered and c.key is not null, c.key, c.correlation_id,
           c.content_type, c.headers, c.payload
      from counted c where c.due_at is not null;
    perform pg_notify('postbus', _topic.id::text);
    return cardinality(_chosen);
end $$;
