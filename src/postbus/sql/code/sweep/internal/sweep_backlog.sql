-- The messages that should have been removed and were not: finished messages of queues, and those in partitions that no group
-- needs, whose retention has been over for longer than it takes until the next sweep. Normally none.
--
-- Finished messages are counted up to a million rows; the number of messages in these is estimated from the oldest hundred rows.
create or replace function postbus.sweep_backlog(
    as_of timestamptz,
    out finished_rows      bigint,
    out finished_messages  bigint,
    out partitions         bigint,
    out partition_messages bigint
)
language plpgsql stable as $$
declare
    _by  timestamptz := as_of - (select s.interval + interval '1 minute' from postbus.sweep_setting s);
    _per double precision;
begin
    select count(*) into finished_rows
      from (select from postbus.topic t join postbus.finished f on f.topic_id = t.id and f.finished_at <= _by - t.retention limit 1000001) as old;
    select avg(cardinality(old.messages)) into _per
      from (select f.messages from postbus.topic t join postbus.finished f on f.topic_id = t.id and f.finished_at <= _by - t.retention
             limit 100) as old;
    finished_messages := coalesce(round(finished_rows * _per), 0);
    select count(*), coalesce(sum(o.messages), 0) into partitions, partition_messages from postbus.overdue_parts(_by) as o;
end $$;
