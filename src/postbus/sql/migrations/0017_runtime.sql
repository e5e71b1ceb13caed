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
