-- Where the segment of a message is: looked for in each leaf of its topic, by the number that its id tells. Null if it is gone.
create or replace function postbus.position_of(topic postbus.topic, id bigint) returns bigint
language sql stable as $$
    select s.position from postbus.segment s
     where s.storage_id = topic.storage_id and s.topic_id = topic.id and s.count > position_of.id & 1023
       and s.position = any (array(select (l.epoch::bigint << 43) + (position_of.id >> 10) from postbus.log_leaf l
                                    where l.storage_id = topic.storage_id))
$$;
