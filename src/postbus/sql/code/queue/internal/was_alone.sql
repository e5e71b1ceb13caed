-- Whether a member that no longer answers had nothing in hand but one message: that of a lease which was taken from it just now,
-- or the row of `retrying` at a place in that table. If it had more, that is noted: it is true of the other messages, too, when
-- their turn comes.
--
-- Never waits: others may be taking these messages now. They see either what is still in hand here, or the note, since both are
-- looked for in one snapshot.
--
-- Writes: crowded.
create or replace function postbus.was_alone(member text, place tid default null) returns boolean
language plpgsql as $$
declare
    _was_noted boolean;
    _has_more  boolean;
begin
    select exists (select from postbus.crowded c where c.member = was_alone.member),
           exists (select from postbus.lease l where l.member = was_alone.member)
           or exists (select from postbus.retrying r
                       where r.token is not null and r.member = was_alone.member and (r.ctid = was_alone.place) is not true)
      into _was_noted, _has_more;
    if _has_more and not _was_noted then
        insert into postbus.crowded (member) values (was_alone.member);
    end if;
    return not _has_more and not _was_noted;
end $$;
