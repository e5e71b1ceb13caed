-- Messages that are settled ahead of their group's cursor are kept by segment: a process that stops may leave tens of thousands.
drop function if exists postbus.retrying_of(uuid[]);
create table postbus.settled_by_segment (
    subscription_id bigint not null,
    lane            integer not null,
    position        bigint not null,
    indexes         int4multirange not null,
    primary key (subscription_id, lane, position)
);
insert into postbus.settled_by_segment (subscription_id, lane, position, indexes)
select a.subscription_id, a.lane, a.position, range_agg(int4range((a.id & 1023)::integer, (a.id & 1023)::integer + 1))
  from postbus.settled_ahead a
 group by a.subscription_id, a.lane, a.position;
drop table postbus.settled_ahead;
alter table postbus.settled_by_segment rename to settled_ahead;
alter index postbus.settled_by_segment_pkey rename to settled_ahead_pkey;

-- Messages that were in hand with others when their process ended are suspected: they are not charged an attempt, and are tried
-- apart. Of a queue they wait in `delayed` until they are claimed, at most `trial` at a time; of a group in `retrying`.
-- Whether what is in hand is `alone` in its process is known of workers. Of others (null) it is seen when the lease has ended.
-- One that takes long is alone for a bounded time, the longer the more often that was not enough (`outlasted`).
alter table postbus.delayed
    add column trial integer,
    add column outlasted integer;
create index delayed_trial_idx on postbus.delayed (topic_id, due_at, id) where trial is not null;
alter table postbus.lease
    add column alone boolean,
    add column outlasted integer;
alter table postbus.retrying
    add column suspected boolean not null default false,
    add column outlasted integer,
    add column alone     boolean;       -- of a worker; null: it is not in hand, or in hand of a pop that took others, too
drop function if exists postbus.claim_retrying(uuid[], integer, timestamptz);
drop function if exists postbus.try_later(bigint, boolean, postbus.queue_message[], postbus.topic, interval, text, timestamptz);
drop function if exists postbus.claim(text, text, integer, interval, text, bigint, timestamptz);
