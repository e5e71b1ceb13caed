-- Deletes the messages of a topic that wait to be claimed, now or later. Leased messages stay. Returns the number of messages; with
-- dry_run it only counts them.
--
-- Writes: queued, delayed, busy_key; see note_action.  Locks: the rows it deletes (skip locked), then busy_key rows.
create or replace function postbus.purge_topic(name text, dry_run boolean default false) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _topic postbus.topic := postbus.existing_topic(name);
    _count bigint;
begin
    if dry_run then
        return (select count(*) from postbus.queued q where q.topic_id = _topic.id)
             + (select count(*) from postbus.delayed d where d.topic_id = _topic.id);
    end if;
    with waiting as (
        select q.ctid from postbus.queued q where q.topic_id = _topic.id for update skip locked
    ), later as (
        select d.ctid from postbus.delayed d where d.topic_id = _topic.id for update skip locked
    ), gone_now as (
        delete from postbus.queued q using waiting where q.ctid = waiting.ctid returning q.id
    ), gone_later as (
        delete from postbus.delayed d using later where d.ctid = later.ctid returning d.id
    )
    select (select count(*) from gone_now) + (select count(*) from gone_later) into _count;
    if _topic.ordered then      -- keys whose message in hand was deleted
        perform from postbus.busy_key b where b.topic_id = _topic.id order by b.key for update;
        -- In a statement of its own: the session that held those locks may have leased the head meanwhile.
        perform postbus.pass_keys(_topic.id, array_agg(b.head_id), array_agg(b.key))
           from postbus.busy_key b
          where b.topic_id = _topic.id
            and not exists (select from postbus.lease l where l.topic_id = _topic.id and b.head_id = any (l.open_ids))
            and not exists (select from postbus.queued q where q.topic_id = _topic.id and q.key = b.key and q.id = b.head_id)
            and not exists (select from postbus.delayed d where d.topic_id = _topic.id and d.id = b.head_id);
    end if;
    if _count > 0 then
        perform postbus.note_action('topic.purge', name, affected => _count);
    end if;
    return _count;
end $$;
