-- Whether a member that does not answer any more had nothing else in hand than one message: that of a lease which was taken from it
-- just now, or the row of `retrying` at a place in that table. If it had more, that is noted: it is true of the others, too, when
-- their turn comes.
--
-- Writes: lease, retrying.
create or replace function postbus.was_alone(member text, place tid default null) returns boolean
language plpgsql as $$
declare
    _is_crowded boolean := exists (select from postbus.lease l where l.member = was_alone.member)
                        or exists (select from postbus.retrying r
                                    where r.token is not null and r.member = was_alone.member and (r.ctid = was_alone.place) is not true);
begin
    if _is_crowded then
        update postbus.lease l set alone = false where l.member = was_alone.member and l.alone is null;
        update postbus.retrying r set alone = false
         where r.token is not null and r.member = was_alone.member and r.alone is null and (r.ctid = was_alone.place) is not true;
    end if;
    return not _is_crowded;
end $$;
