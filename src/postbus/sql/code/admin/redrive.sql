-- Returns dead letters of a topic to the queue, or to their group alone, with their attempts at zero. Those of a queue that became
-- PUB_SUB go to the group that is named. Which ones: those with the given ids, or those that match the filters, the oldest first.
-- Returns how many; with dry_run it only counts.
--
-- With a rate they come back spread over time: `rate` messages per second. Ids that are not dead letters of the topic are refused,
-- and then none is returned.
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
    _topic  postbus.topic := postbus.existing_topic(topic);
    _now    timestamptz := clock_timestamp();
    _chosen bigint[];
    _gone   text;
    _for    bigint := 0;
    _parts  bigint[];       -- the group's subscription, and those that have read its history
begin
    if _topic.storage_id is not null then
        if group_name is null then
            perform postbus.refuse('PB402', format('topic %L is PUB_SUB: its dead letters belong to groups', topic),
                'name the group: group_name in SQL, group=NAME in Python, "group" over HTTP, --group NAME');
        end if;
        _for := (postbus.existing_subscription(topic, group_name)).id;
    elsif group_name is not null then
        perform postbus.refuse('PB402', format('topic %L is a QUEUE and has no groups', topic), 'leave the group out');
    end if;
    if rate <= 0 then
        perform postbus.refuse('PB402', format('rate %s is not positive', rate), 'give messages per second, or leave it out');
    elsif max_count < 1 then
        perform postbus.refuse('PB402', format('max_count %s is less than 1', max_count), 'give 1 or more, or leave it out');
    end if;
    _chosen := array(
        select d.id from postbus.dead_letter d
         where d.topic_id = _topic.id and d.subscription_id in (_for, 0)
           and (redrive.ids is null or d.id = any (redrive.ids))
           and (reason_like is null or d.reason ilike reason_like or d.last_error ilike reason_like)
           and (died_after is null or d.died_at >= died_after)
           and (died_before is null or d.died_at < died_before)
           and (redrive.key is null or d.key = redrive.key)
         order by d.id limit max_count for update);
    select string_agg(wanted.id::text, ', ') into _gone
      from unnest(redrive.ids) as wanted (id) where wanted.id <> all (_chosen);
    if _gone is not null then
        perform postbus.refuse('PB405', format('no dead letter %s in topic %L', _gone, topic),
            'list them: postbus dead-letters list ' || topic);
    end if;
    if dry_run then
        return cardinality(_chosen);
    end if;

    if cardinality(_chosen) > 0 then
        perform postbus.note_action('dead_letters.redrive', topic, group_name, affected => cardinality(_chosen), given => jsonb_build_object(
            'ids', redrive.ids[:100], 'reason_like', left(reason_like, 200), 'died_after', died_after, 'died_before', died_before,
            'key', left(redrive.key, 200), 'max_count', max_count, 'rate', rate));
    end if;
    if _for <> 0 then
        _parts := array(select distinct st.subscription_id from postbus.stretch st where st.topic_id = _topic.id and st.group_id = _for);
        -- Where it was given up: it may have been by a subscription that read the group's history.
        with given_up as materialized (
            select r.id, max(r.stretch) filter (where r.subscription_id = _for and r.stretch > 0) as own, bool_or(r.stretch is null) as is_unknown
              from postbus.receipt r
             where r.storage_id = _topic.storage_id and r.id = any (_chosen) and r.outcome = 'DEAD' and r.deviates
               and r.subscription_id = any (_parts) group by r.id
        ), redriven as (
            delete from postbus.dead_letter d
             where d.topic_id = _topic.id and d.id = any (_chosen) and d.subscription_id in (_for, 0)
            returning d.*, d.subscription_id = 0 as is_of_queue
        ), placed as (
            select r.*, position.sequence is not null as is_there,
                   coalesce(postbus.lane_of(r.key, _topic.lanes), position.lane, ((r.id >> 10) % _topic.lanes)::integer) as lane,
                   -- One that is gone, or was in the queue, is older than all that is there.
                   case when r.is_of_queue then r.id else coalesce(position.sequence, r.id >> 10) end as sequence
              from redriven r
              left join postbus.segment position
                on position.storage_id = _topic.storage_id and position.topic_id = _topic.id and position.sequence = postbus.sequence_of(_topic, r.id)
               and not r.is_of_queue
        )
        insert into postbus.deferred (subscription_id, lane, id, sequence, due_at, kept_from, published_at, key, correlation_id,
                                      content_type, headers, payload, stretch)
        select _for, p.lane, p.id, p.sequence,
               _now + coalesce(make_interval(secs => (row_number() over (order by p.id) - 1) / redrive.rate), interval '0'),
               _now, p.published_at, p.key, p.correlation_id, p.content_type, p.headers, p.payload,
               case when not p.is_there or g.is_unknown is not false then null
                    when postbus.is_ahead(_for, p.lane, p.id, p.sequence) then postbus.stretch_of(_for, p.lane)   -- the log passes it by there
                    when g.own is not null then g.own
                    else - postbus.stretch_of(_for, p.lane) end
          from placed p left join given_up g on g.id = p.id
        on conflict on constraint deferred_pkey do nothing;
        -- It is no longer given up. In other stretches than the one that it waits in, it was not settled all the same.
        update postbus.receipt r set outcome = 'SKIPPED', txid = pg_current_xact_id()
          from postbus.deferred w
         where r.storage_id = _topic.storage_id and r.id = any (_chosen) and r.outcome = 'DEAD' and r.deviates and r.subscription_id = any (_parts)
           and r.stretch is not null and w.subscription_id = _for and w.id = r.id
           and (r.subscription_id <> _for or r.stretch < abs(w.stretch));
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
