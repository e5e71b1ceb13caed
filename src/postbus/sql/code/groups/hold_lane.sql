-- Keeps a lane from being taken until the end of the transaction, for handlers whose effect commits with the settlement. Returns
-- whether the caller still holds the lane.
--
-- Locks: the lane's row, for share.
create or replace function postbus.hold_lane(token uuid) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform from postbus.lane l where l.token = hold_lane.token for share;
    return found;
end $$;
