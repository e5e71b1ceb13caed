-- Notes that a suspect takes long, and that its process now handles other messages beside it. If the process ends, no attempt is
-- charged. The next time, the suspect is tried alone for longer. The token is that of a queue's lease, or of a lane.
--
-- Writes: lease, or deferred.
create or replace function postbus.not_alone(token uuid, id bigint default null) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if id is null then
        update postbus.lease l set alone = false, outlasted = coalesce(l.outlasted, 0) + 1 where l.token = not_alone.token and l.alone;
    else
        update postbus.deferred r set alone = false, outlasted = coalesce(r.outlasted, 0) + 1
          from postbus.lane l
         where l.token = not_alone.token
           and r.subscription_id = l.subscription_id and r.lane = l.lane and r.id = not_alone.id and r.alone and r.token is null;
    end if;
end $$;
