-- Passes keys of an ordered topic on: the messages with these ids are settled, so the next message of each key may be claimed. A
-- key that has another message in hand stays as it is.
--
-- Sees what other sessions have parked only in a snapshot that is younger than their locks, that is, in READ COMMITTED.
--
-- Writes: busy_key, queued.  Locks: busy_key rows in the order of their keys.
create or replace function postbus.pass_keys(topic_id bigint, ids bigint[], keys text[]) returns void
language plpgsql as $$
declare
    _passed text[];
begin
    perform postbus.check_isolation();
    _passed := array(select b.key from postbus.busy_key b
                      where b.topic_id = pass_keys.topic_id and b.key = any (pass_keys.keys) and b.head_id = any (ids)
                      order by b.key for update);
    update postbus.busy_key b
       set head_id = (select q.id from postbus.queued q
                       where q.topic_id = b.topic_id and q.key = b.key and q.ordered
                       order by q.topic_id, q.key, q.id limit 1)
     where b.topic_id = pass_keys.topic_id and b.key = any (_passed);
    delete from postbus.busy_key b
     where b.topic_id = pass_keys.topic_id and b.key = any (_passed) and b.head_id is null;
    perform postbus.unpark_heads(topic_id, _passed);
end $$;
