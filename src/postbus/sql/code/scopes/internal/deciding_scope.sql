-- The record that decides where a group starts in a topic as a whole: the most specific one, and of these the first. A topic comes
-- before a namespace, a namespace before a task, and a task before a pattern. Nulls if the topic is in no scope of the group.
create or replace function postbus.deciding_scope(group_name text, topic postbus.topic) returns postbus.scope
language sql stable as $$
    select c from postbus.scope c
     where c.group_name = deciding_scope.group_name and c.key is null and postbus.in_scope(c, deciding_scope.topic)
     order by c.topic is null, c.namespace is null, c.task is null, c.recorded_at, c.id limit 1
$$;
