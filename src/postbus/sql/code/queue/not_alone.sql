-- What was claimed to be tried alone takes long: its process goes on with others beside it. If that ends now, nothing is charged.
-- The next time it has longer. Of a lease of a queue, or of a message in a lane with this token.
--
-- Writes: lease, or retrying.
create or replace function postbus.not_alone(token uuid, id bigint default null) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if id is null then
        update postbus.lease l set alone = false, outlasted = coalesce(l.outlasted, 0) + 1 where l.token = not_alone.token and l.alone;
    else
        update postbus.retrying r set alone = false, outlasted = coalesce(r.outlasted, 0) + 1
          from postbus.lane l
         where l.token = not_alone.token
           and r.subscription_id = l.subscription_id and r.lane = l.lane and r.id = not_alone.id and r.alone and r.token is null;
    end if;
end $$;
