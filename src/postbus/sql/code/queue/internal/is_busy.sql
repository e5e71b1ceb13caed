-- Whether a member has messages in hand, of a queue or of a pulling group.
create or replace function postbus.is_busy(member text, as_of timestamptz) returns boolean
language sql stable as $$
    select exists (select from postbus.lease l where l.member = is_busy.member)
        or exists (select from postbus.deferred r where r.token is not null and r.member = is_busy.member and r.due_at > as_of)
$$;
