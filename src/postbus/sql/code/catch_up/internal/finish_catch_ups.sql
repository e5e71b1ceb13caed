-- Ends catch-ups that have come to their end and have no deferred messages left. Returns how many.
--
-- Writes: see end_subscription.  Locks: subscription rows (skip locked).
create or replace function postbus.finish_catch_ups(storage_id integer) returns bigint
language plpgsql as $$
declare
    _id    bigint;
    _count bigint := 0;
begin
    for _id in
        select s.id from postbus.catch_up u
          join postbus.subscription s on s.id = u.subscription_id
          join postbus.topic t on t.id = s.topic_id
         where u.status = 'IN_PROGRESS' and t.storage_id = finish_catch_ups.storage_id
           and not exists (select from postbus.current_cursor c
                            where c.subscription_id = s.id
                              and ((c.cursor).target is not null or ((c.cursor).seen).sequence <> ((c.cursor).until).sequence
                                   or ((c.cursor).seen).snapshot::text <> ((c.cursor).until).snapshot::text))
           and not exists (select from postbus.deferred r where r.subscription_id = s.id)
           for no key update of s skip locked
    loop
        perform postbus.end_subscription(_id, 'COMPLETED');
        _count := _count + 1;
    end loop;
    return _count;
end $$;
