-- Whether a member that no longer answers had a single message in hand: that of a lease which was just taken from it, or the row
-- of `deferred` with this ctid. If the member had more in hand, the function notes that in `crowded`, for the calls with the
-- member's other messages.
--
-- Never waits. Other sessions may be taking these messages now. They see either the messages that are still in hand here, or the
-- note, since one snapshot shows both.
--
-- Writes: crowded.
create or replace function postbus.was_alone(member text, message tid default null) returns boolean
language plpgsql as $$
declare
    _was_noted boolean;
    _has_more  boolean;
begin
    select exists (select from postbus.crowded c where c.member = was_alone.member),
           exists (select from postbus.lease l where l.member = was_alone.member)
           or exists (select from postbus.deferred r
                       where r.token is not null and r.member = was_alone.member and (r.ctid = was_alone.message) is not true)
      into _was_noted, _has_more;
    if _has_more and not _was_noted then
        insert into postbus.crowded (member) values (was_alone.member);
    end if;
    return not _has_more and not _was_noted;
end $$;
