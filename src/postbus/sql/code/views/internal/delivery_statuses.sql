-- The statuses of messages of some segments of a topic at each of its groups: a row for each group, and each run of messages of a
-- segment that have all of them in common. A group has settled the messages in its stretches, except for single messages of which
-- `facts` say that they wait, or have ended otherwise. See the comments of the type delivery_status.
create or replace function postbus.delivery_statuses(topic_id bigint, segments postbus.segment_ref[], facts postbus.message_fact[])
returns setof postbus.delivery_status
language plpgsql stable
set plan_cache_mode = force_generic_plan
set enable_nestloop = off      -- the planner does not know how many are given
set jit = off as $$
#variable_conflict use_column
begin
    return query
        with segment as materialized (
            select s.sequence, s.sequence & 8796093022207 as number, s.lane, s.txid, s.count, s.published_at from unnest(segments) as s
        ), part as materialized (
            select p.* from postbus.progress(delivery_statuses.topic_id, array(select distinct s.lane from segment s)) as p
        ), span as materialized (       -- of a segment: a stretch has the messages from first on, and below past
            select s.sequence, p.subscription_id, p.number, p.group_id, p.group_name, p.txid, p.died, p.reads, p.lives,
                   p.next_number is null as is_last,
                   s.count - postbus.unseen_in_segment(p.began, s.sequence, s.txid, s.count, s.published_at) as first,
                   s.count - postbus.unseen_in_segment(p.reached, s.sequence, s.txid, s.count, s.published_at) as past,
                   case when (p.died).txid = '2' then s.sequence <= (p.died).sequence      -- its snapshot only tells when it died: see rebase
                        else pg_visible_in_snapshot(s.txid, (p.died).snapshot) is not false end as was_there
              from segment s join part p on p.lane = s.lane
        ), single as materialized (
            select s.sequence, (o.id & 1023)::integer as index, o.subscription_id, o.group_name, o.kind, o.txid, o.stretch,
                   alive.subscription_id is not null as lives
              from segment s
              join unnest(facts) as o on o.id >> 10 = s.number
              left join (select distinct p.subscription_id from part p where p.lives) as alive on alive.subscription_id = o.subscription_id
        ), cut as (
            select s.sequence, 0 as index from segment s
             union select sp.sequence, sp.first from span sp
             union select sp.sequence, sp.past from span sp
             union select o.sequence, o.index from single o
             union select o.sequence, o.index + 1 from single o
        ), run as materialized (
            select c.sequence, c.index as first_index, lead(c.index, 1, s.count) over (partition by c.sequence order by c.index) - 1 as last_index
              from segment s join cut c on c.sequence = s.sequence where c.index < s.count
        ), mark as materialized (       -- of the message's stretch, or of all if that is not known; is_outside: it was settled outside
            select o.sequence, o.index, p.subscription_id, p.number, p.group_name, o.kind, o.txid, coalesce(o.stretch < 0, false) as is_outside
              from single o
              join segment s on s.sequence = o.sequence
              join part p on p.lane = s.lane and p.group_name = o.group_name
               and (o.stretch is null
                    or p.subscription_id = o.subscription_id and p.number <= abs(o.stretch) and (p.next_number > abs(o.stretch)) is not false)
             where o.kind <> 'AHEAD' and not (o.kind = 'LETTER' and o.stretch is not null)
        ), marked as materialized (
            select m.sequence, m.index, m.subscription_id, m.number, bool_or(m.kind <> 'COMPLETED' and not m.is_outside) as is_undone,
                   bool_or(m.kind = 'DEAD') as is_dead
              from mark m group by m.sequence, m.index, m.subscription_id, m.number
        ), own as materialized (
            select o.sequence, o.index, o.group_name, bool_or(o.kind = 'COMPLETED') as is_completed,
                   max(o.kind) filter (where o.kind in ('PENDING', 'RETRYING', 'WAITING')) as waits,
                   bool_or(o.lives) filter (where o.kind in ('PENDING', 'RETRYING', 'WAITING')) as waits_and_lives,
                   bool_or(o.kind = 'LETTER') as is_letter, bool_or(o.kind = 'ABANDONED') as is_abandoned, bool_or(o.kind = 'DEAD') as is_dead
              from single o group by o.sequence, o.index, o.group_name
        ), at_group as materialized (
            select r.sequence, r.first_index, r.last_index, sp.group_name, max(sp.group_id) as subscription_id,
                   bool_or(sp.first <= r.first_index and r.first_index < sp.past and m.is_undone is not true) as is_done,
                   bool_or(sp.reads and sp.past <= r.first_index) as is_before, bool_or(sp.lives) as lives,
                   bool_or(sp.first <= r.first_index and sp.was_there) as was_wanted,
                   bool_or(sp.reads and sp.past <= r.first_index and m.is_dead) as is_dead_ahead,
                   bool_or(sp.past <= r.first_index and m.is_undone is not true and a.sequence is not null) as is_ahead
              from run r
              join span sp on sp.sequence = r.sequence
              left join marked m on m.sequence = r.sequence and m.index = r.first_index
                                and m.subscription_id = sp.subscription_id and m.number = sp.number
              left join (select o.sequence, o.index, o.subscription_id from single o where o.kind = 'AHEAD') as a
                on a.sequence = r.sequence and a.index = r.first_index and a.subscription_id = sp.subscription_id and sp.is_last
             group by r.sequence, r.first_index, r.last_index, sp.group_name
        ), judged as materialized (
            select g.sequence, g.first_index, g.last_index, g.group_name, g.subscription_id, g.is_before, g.was_wanted,
                   case when o.waits is null or g.is_before then g.lives else o.waits_and_lives end as lives, o.waits is not null as waits,
                   postbus.status_at(g.is_done, g.is_before, g.is_ahead, g.is_dead_ahead, o.is_completed, o.waits, o.is_letter, o.is_dead,
                                     o.is_abandoned) as status
              from at_group g
              left join own o on o.sequence = g.sequence and o.index = g.first_index and o.group_name = g.group_name
        ), past_all as materialized (   -- the messages that all groups were past at a joining
            select r.sequence, r.first_index, j.id, j.snapshot, behind.owners as unless_done_by
              from run r
              join segment s on s.sequence = r.sequence
              join postbus.joining j on j.topic_id = delivery_statuses.topic_id and j.lane = s.lane and pg_visible_in_snapshot(s.txid, j.snapshot)
              cross join lateral (select array_agg(j.owners[n]) as owners, bool_or(j.owners[n] is null) as are_unknown
                                  from generate_subscripts(j.cursors, 1) as n
                                 where r.first_index >= s.count - postbus.unseen_in_segment(j.cursors[n], s.sequence, s.txid, s.count,
                                                                                             s.published_at)) as behind
             where behind.are_unknown is not true
        ), was_alive as materialized (  -- at a joining: in the last stretch that a subscription had begun then
            select distinct on (j.id, p.subscription_id) j.id, p.subscription_id,
                   -- A subscription whose cursor is just being set lives.
                   (pg_snapshot_xmax((p.died).snapshot) < pg_snapshot_xmax(j.snapshot)) is not true as lives
              from postbus.joining j join part p on p.lane = j.lane
             where j.topic_id = delivery_statuses.topic_id and pg_visible_in_snapshot(p.txid, j.snapshot)
             order by j.id, p.subscription_id, p.number desc
        ), at_joining as (
            select a.sequence, a.first_index, a.id, sp.group_name, sp.group_name = any (a.unless_done_by) as must_have_done,
                   bool_or(sp.first <= a.first_index and a.first_index < sp.past and pg_visible_in_snapshot(sp.txid, a.snapshot)
                               and (m.sequence is null or m.is_outside)
                               and ((sp.group_name = any (a.unless_done_by)) is not true
                                    or pg_snapshot_xmax((sp.died).snapshot) <= pg_snapshot_xmax(a.snapshot))      -- it had left by then
                           or m.kind = 'COMPLETED' and pg_visible_in_snapshot(m.txid, a.snapshot)) as was_done,
                   bool_or(case when m.kind = 'DEAD' and pg_visible_in_snapshot(m.txid, a.snapshot) then true
                                when m.kind is null or pg_visible_in_snapshot(m.txid, a.snapshot) then false
                                else pg_visible_in_snapshot(sp.txid, a.snapshot) and alive.lives end) as was_undone
              from past_all a
              join span sp on sp.sequence = a.sequence
              left join mark m on m.sequence = a.sequence and m.index = a.first_index
                              and m.subscription_id = sp.subscription_id and m.number = sp.number
              left join was_alive alive on alive.id = a.id and alive.subscription_id = sp.subscription_id
             group by a.sequence, a.first_index, a.id, a.unless_done_by, sp.group_name
        ), was_completed as (
            select distinct one.sequence, one.first_index
              from (select a.sequence, a.first_index from at_joining a group by a.sequence, a.first_index, a.id
                    having bool_or(a.was_done) and not bool_or((a.was_undone or a.must_have_done) and a.was_done is not true)) as one
        ), of_message as (
            select t.sequence, t.first_index,
                   bool_or(t.status = 'COMPLETED')
                   and (min(w.first_index) is not null
                        or not bool_or(t.status = 'DEAD' or t.lives and t.status in ('PENDING', 'RETRYING', 'WAITING'))) as is_completed
              from judged t
              left join was_completed w on w.sequence = t.sequence and w.first_index = t.first_index
             group by t.sequence, t.first_index
        )
        select t.sequence, t.first_index, t.last_index, t.group_name, t.subscription_id, t.status,
               t.status = 'COMPLETED' or not m.is_completed and (t.status = 'DEAD' or t.lives and t.status in ('PENDING', 'RETRYING', 'WAITING')),
               t.was_wanted or t.status in ('COMPLETED', 'DEAD'), m.is_completed, t.is_before, t.waits
          from judged t
          join of_message m on m.sequence = t.sequence and m.first_index = t.first_index;
end $$;
