-- The scopes that groups have subscribed to, and the start of the groups in topics that match later: see the table scope.
create or replace view postbus.scopes as
select c.group_name, c.topic, c.key, c.namespace, c.task, c.pattern, c.mode, c.start_at, c.recorded_at, c.on_failure, c.catch_up,
       joined.topics, c.start_id
  from postbus.scope c
 cross join lateral (select coalesce(array_agg(t.name order by t.name), '{}') as topics
                       from postbus.subscription s join postbus.topic t on t.id = s.topic_id
                      where s.group_name = c.group_name and s.state <> 'CANCELLED' and s.catch_up_of is null
                        and (s.scope_id = c.id or postbus.in_scope(c, t))) as joined;
