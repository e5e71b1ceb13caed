-- Moves due messages of a topic from `delayed` to the queue, up to 1000 at a time, except for suspects: see claim_suspects.
-- Returns the due time up to which messages are promoted, for the next scan floor.
--
-- Writes: delayed, queued.  Locks: delayed rows (skip locked).
create or replace function postbus.promote_delayed(
    topic_id   bigint,
    scan_floor postbus.scan_floor,
    as_of      timestamptz
) returns timestamptz
language plpgsql as $$
declare
    _open     xid8[];
    _since    xid8;
    _above    timestamptz := '-infinity';
    _count    integer;
    _last_due timestamptz;
begin
    -- A clock that was set back makes the scan floor useless: search all of them.
    if scan_floor.delays_due_at <= as_of then
        _above := scan_floor.delays_due_at;
        _open := scan_floor.open;
        _since := scan_floor.xmax;
    end if;

    if not exists (select from postbus.delayed d where d.topic_id = promote_delayed.topic_id and d.due_at > _above and d.due_at <= as_of
                     and d.trial is null)
       and (_since is null or not exists (
            select from postbus.delayed d
             where d.topic_id = promote_delayed.topic_id and d.due_at <= _above and (d.txid >= _since or d.txid = any (_open))
               and d.trial is null))
    then
        return as_of;
    end if;

    with due as (
        select d.ctid, d.due_at from postbus.delayed d
         where d.topic_id = promote_delayed.topic_id and d.due_at > _above and d.due_at <= as_of and d.trial is null
         order by d.topic_id, d.due_at limit 1000 for update skip locked
    ), late as (        -- committed after the scan floor was taken, and due before it
        select d.ctid from postbus.delayed d
         where d.topic_id = promote_delayed.topic_id and d.txid >= _since and d.due_at <= _above and d.trial is null
           for update skip locked
    ), open_then as (   -- open when the scan floor was taken
        select d.ctid from postbus.delayed d
         where d.topic_id = promote_delayed.topic_id and d.txid = any (_open) and d.due_at <= _above and d.trial is null
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

    return case when _count < 1000 then as_of else _last_due - interval '1 microsecond' end;
end $$;
