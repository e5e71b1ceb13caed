-- Details of a message at a group beside its status (see delivery_statuses): when, by which process and in how many attempts it was
-- settled for the first time; and the process that has it in hand, or that reads its lane while the message is ahead of the group.
-- Without receipts only the status is known.
create or replace function postbus.delivery(
    topic           postbus.topic,
    segment         postbus.segment_ref,
    index           integer,
    group_name      text,
    status          text,
    is_before       boolean,
    out settled_at  timestamptz,
    out worker      text,
    out attempts    integer,
    out last_error  text,
    out holder      text
)
language plpgsql stable
set enable_seqscan = off as $$
declare
    _id    bigint := postbus.first_id(segment.sequence) + index;
    _facts postbus.message_fact[] := postbus.message_facts(topic, (segment.sequence >> 43)::integer, _id, _id);
    _waits postbus.message_fact;
    _kept  postbus.message_fact;
    _dead  postbus.message_fact;
    _part  record;
begin
    select o.* into _waits from unnest(_facts) as o
     where o.group_name = delivery.group_name and o.kind in ('PENDING', 'RETRYING', 'WAITING') limit 1;
    select o.* into _kept from unnest(_facts) as o
     where o.group_name = delivery.group_name and o.kind in ('COMPLETED', 'DEAD', 'ABANDONED')
     order by o.kind = delivery.status desc, case when o.kind = 'COMPLETED' then o.at end, o.at desc limit 1;
    select o.* into _dead from unnest(_facts) as o where o.group_name = delivery.group_name and o.kind = 'LETTER' limit 1;
    if topic.tracking = 'REFERENCE_COUNTING' and status in ('COMPLETED', 'DEAD') then
        if _kept.kind = status then
            settled_at := _kept.at;
            worker := _kept.worker;
        else
            for _part in
                select p.subscription_id, p.number, p.next_number from postbus.progress(topic.id, array[segment.lane]) as p
                 where p.group_name = delivery.group_name
                   and not postbus.is_past(p.began, segment.sequence, segment.txid, index, segment.count, segment.published_at)
                   and postbus.is_past(p.reached, segment.sequence, segment.txid, index, segment.count, segment.published_at)
                 order by p.subscription_id, p.number
            loop
                select f.at, f.worker into settled_at, worker
                  from postbus.settling_step(topic, _part.subscription_id, _part.number, _part.next_number, segment, index) as f;
                exit when settled_at is not null;
            end loop;
        end if;
    end if;
    attempts := coalesce(_waits.attempts, _kept.attempts, _dead.attempts, case when status = 'COMPLETED' then 1 else 0 end);
    last_error := coalesce(_waits.error, _kept.error, _dead.error);
    if is_before or status = 'PENDING' then
        holder := coalesce(_waits.worker, (select l.holder from postbus.stretch st
                                             join postbus.lane l on l.subscription_id = st.subscription_id and l.lane = st.lane
                                            where st.topic_id = topic.id and st.lane = segment.lane and st.group_name = delivery.group_name
                                              and st.subscription_id = st.group_id and st.reached is null limit 1));
    end if;
end $$;
