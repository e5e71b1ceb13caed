-- Refuses kinds of deferral and delays that do not exist.
create or replace function postbus.check_deferral(kinds text[], delays interval[]) returns void
language plpgsql as $$
declare
    _wrong text;
begin
    if kinds <@ array['retry', 'park', 'release', 'suspect', 'dead'] and interval '0' <= all (delays) is not false
       and interval '1000 years' >= all (delays) is not false then
        return;
    end if;
    select one.kind into _wrong from unnest(kinds) as one (kind)
     where (one.kind in ('retry', 'park', 'release', 'suspect', 'dead')) is not true limit 1;
    if found then
        perform postbus.refuse('PB402', format('a message cannot be deferred as %s', coalesce(quote_literal(postbus.in_line(_wrong, 40)), 'null')),
            'use retry, park, release, suspect or dead');
    end if;
    perform postbus.check_delay(one.delay) from unnest(delays) as one (delay);
end $$;
