-- Notes what is completed in each lane of a topic now, when a group gets retained messages that it was not required for: completed
-- messages stay completed. Called before the group gets them, or afterwards with the group's subscription; as late in the
-- transaction as possible, since messages that are settled between this call and the commit do not count as completed.
--
-- Keeps those positions of live groups that no other position is behind. An earlier joining that adds nothing is removed, unless
-- messages that it is about have been settled one by one since.
--
-- Writes: joining; see copy_ahead_to_receipts.
create or replace function postbus.note_joining(topic postbus.topic, subscription_id bigint default null) returns void
language plpgsql as $$
declare
    _sequence bigint := postbus.last_sequence(topic.storage_id);
    _new      record;
begin
    if not exists (select from postbus.stretch st
                    where st.topic_id = topic.id and (st.group_id is distinct from note_joining.subscription_id or not (st.reached is null))) then
        return;         -- no group can have settled anything
    end if;
    perform postbus.copy_ahead_to_receipts(topic);
    for _new in
        with stretch as materialized (
            select p.*, case when count(*) over (partition by p.lane, p.group_name) > 1
                               or exists (select from postbus.settled_ahead a where a.subscription_id = p.subscription_id and a.lane = p.lane)
                             then p.group_name end as owner
              from postbus.progress(topic.id) as p
        ), position as materialized (
            select p.lane, p.owner, p.reached as cursor, p.reached::text as text, pg_snapshot_xmin(((p.reached).seen).snapshot) as seen,
                   case when ((p.reached).seen).txid <> '2' and (p.reached).until is null and (p.reached).since_bound is null and p.owner is null
                        then pg_snapshot_xmax((case when (p.reached).target is null then (p.reached).seen else (p.reached).target end).snapshot)
                   end as ends
              from stretch p
             where p.lives and p.group_id is distinct from note_joining.subscription_id
        ), lowest as (
            select p.lane, (array_agg(p.ends order by p.ends))[1] as ends from position p group by p.lane
        ), kept as (
            select distinct on (p.lane, p.text, p.owner) p.lane, p.cursor, p.owner from position p join lowest l on l.lane = p.lane
             where (p.seen >= l.ends and p.ends is distinct from l.ends) is not true
        )
        insert into postbus.joining (topic_id, lane, sequence, snapshot, cursors, owners)
        select topic.id, lane.n, _sequence, pg_current_snapshot(),
               coalesce(of_lane.cursors, '{}'), coalesce(of_lane.owners, '{}')
          from generate_series(0, topic.lanes - 1) as lane (n)
          left join (select k.lane, array_agg(k.cursor) as cursors, array_agg(k.owner) as owners from kept k group by k.lane) as of_lane
            on of_lane.lane = lane.n
        returning id, joining.lane, joining.cursors, joining.owners, joining.snapshot
    loop
        delete from postbus.joining j
         where j.topic_id = topic.id and j.lane = _new.lane and j.id < _new.id
           and not exists (select from generate_subscripts(_new.cursors, 1) as n
                            where (pg_snapshot_xmin(((_new.cursors[n]).seen).snapshot) >= pg_snapshot_xmax(j.snapshot)) is not true
                              and not exists (select from generate_subscripts(j.cursors, 1) as o
                                               where j.cursors[o]::text = _new.cursors[n]::text
                                                 and (j.owners[o] is null or j.owners[o] = _new.owners[n])))
           and pg_snapshot_xmax(j.snapshot) <= pg_snapshot_xmax(_new.snapshot)
           and not exists (select from postbus.subscription s join postbus.deferred r on r.subscription_id = s.id and r.lane = j.lane
                            where s.topic_id = topic.id and r.sequence <= j.sequence)
           and not exists (select from postbus.stretch st join postbus.receipt r on r.subscription_id = st.subscription_id
                            where st.topic_id = topic.id and st.lane = j.lane and r.storage_id = topic.storage_id and r.deviates
                              and pg_visible_in_snapshot(r.txid, j.snapshot) is not true and r.id >> 10 <= j.sequence & 8796093022207);
    end loop;
end $$;
