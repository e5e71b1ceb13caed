-- Moves the delayed messages of a topic that are due to the queue, up to 1000 at a time.
-- Returns the floor with what it has seen of them.
--
-- Writes: delayed, queued.  Locks: delayed rows (skip locked).
create or replace function postbus.promote_delayed(
    topic_id bigint,
    floor    postbus.queue_floor,
    as_of    timestamptz
) returns postbus.queue_floor
language plpgsql as $$
declare
    _snapshot pg_snapshot := pg_current_snapshot();
    _open     xid8[];
    _since    xid8;
    _above    timestamptz := '-infinity';
    _count    integer;
    _last_due timestamptz;
begin
    -- A clock that was set back makes the floor useless: look at everything.
    if floor.delays_due_at <= as_of then
        _above := floor.delays_due_at;
        _open := array(select pg_snapshot_xip(floor.delays_snapshot));
        _since := pg_snapshot_xmax(floor.delays_snapshot);
    end if;

    if not exists (select from postbus.delayed d where d.topic_id = promote_delayed.topic_id and d.due_at > _above and d.due_at <= as_of)
       and (_since is null or not exists (
            select from postbus.delayed d
             where d.topic_id = promote_delayed.topic_id and d.due_at <= _above and (d.txid >= _since or d.txid = any (_open))))
    then
        floor.delays_snapshot := _snapshot;
        floor.delays_due_at := as_of;
        return floor;
    end if;

    with due as (
        select d.ctid, d.due_at from postbus.delayed d
         where d.topic_id = promote_delayed.topic_id and d.due_at > _above and d.due_at <= as_of
         order by d.topic_id, d.due_at limit 1000 for update skip locked
    ), late as (        -- committed after the floor was taken, and due before it
        select d.ctid from postbus.delayed d
         where d.topic_id = promote_delayed.topic_id and d.txid >= _since and d.due_at <= _above
           for update skip locked
    ), open_then as (   -- open when the floor was taken
        select d.ctid from postbus.delayed d
         where d.topic_id = promote_delayed.topic_id and d.txid = any (_open) and d.due_at <= _above
           for update skip locked
    ), promoted as (
        delete from postbus.delayed d
         using (select ctid from due union select ctid from late union select ctid from open_then) as chosen
         where d.ctid = chosen.ctid
        returning d.*
    ), moved as (
        insert into postbus.queued (topic_id, id, published_at, attempts, priority, ordered, key, correlation_id, content_type, headers, payload)
        select p.topic_id, p.id, p.published_at, p.attempts, p.priority, p.ordered, p.key, p.correlation_id, p.content_type, p.headers, p.payload
          from promoted p
         order by p.due_at, p.id
    )
    select count(*), max(due_at) into _count, _last_due from due;

    floor.delays_snapshot := _snapshot;
    floor.delays_due_at := case when _count < 1000 then as_of else _last_due - interval '1 microsecond' end;
    return floor;
end $$;
