-- Removes deferred messages of groups of a log storage when the topic's max_retention is over: those in pull buffers, those that
-- wait for a retry, and those parked behind them. Messages in hand, and those that wait for their backoff, are left until they are
-- due. For redriven and imported messages the time counts from the redrive or the import.
--
-- Dead letters stay: an operator has to decide about them.
--
-- Considers the oldest thousand of each lane, removes at most max_count, and returns their number. Each group's loss is recorded.
--
-- Writes: deferred, settled_ahead, receipt, loss, group_event.  Locks: rows of deferred (skip locked).
create or replace function postbus.expire_copies(storage_id integer, max_count integer, as_of timestamptz) returns bigint
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off as $$
declare
    _reason text := 'max_retention had passed';
    _tids   tid[];
    _lost   record;
    _count  bigint := 0;
begin
    _tids := array(
        select old.tid
          from postbus.topic t
          join postbus.subscription s on s.topic_id = t.id
          join postbus.lane l on l.subscription_id = s.id
         cross join lateral (select r.ctid as tid, r.kept_from, r.published_at, r.parked, r.due_at from postbus.deferred r
                              where r.subscription_id = s.id and r.lane = l.lane order by r.id limit 1000) as old
         where t.storage_id = expire_copies.storage_id and coalesce(old.kept_from, old.published_at) <= as_of - t.max_retention
           and (old.parked or old.due_at <= as_of)
         limit max_count);
    _tids := array(select r.ctid from postbus.deferred r where r.ctid = any (_tids) order by r.sequence, r.id for update skip locked);
    perform postbus.note_left_behind(postbus.subscribed_topic(waiting.subscription_id), array_agg(waiting.tid), 'ABANDONED')
       from (select r.subscription_id, r.ctid as tid from postbus.deferred r where r.ctid = any (_tids)) as waiting
      group by waiting.subscription_id;
    for _lost in
        with gone as (
            delete from postbus.deferred r where r.ctid = any (_tids)
            returning r.subscription_id, r.lane, r.id, r.sequence, r.buffered
        ), ahead as (
            select postbus.note_settled_ahead(g.subscription_id, g.lane, array_agg(g.id), array_agg(g.sequence))
              from gone g where not g.buffered group by g.subscription_id, g.lane
        )
        select t.name as topic, s.group_name, postbus.group_of(s.id) as id, count(*) as messages, (select count(*) from ahead) as noted
          from gone g
          join postbus.subscription s on s.id = g.subscription_id
          join postbus.topic t on t.id = s.topic_id
         group by t.name, s.group_name, s.id
    loop
        insert into postbus.loss (subscription_id, at, reason, messages) values (_lost.id, as_of, _reason, _lost.messages);
        insert into postbus.group_event (at, name, topic, group_name, fields)
        values (as_of, 'group.lost', _lost.topic, _lost.group_name, jsonb_build_object('messages', _lost.messages, 'reason', _reason));
        _count := _count + _lost.messages;
    end loop;
    return _count;
end $$;
