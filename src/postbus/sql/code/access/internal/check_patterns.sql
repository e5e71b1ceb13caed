-- Refuses patterns of topic or group names to which a token cannot be limited.
create or replace function postbus.check_patterns(patterns text[], kind text) returns void
language plpgsql as $$
declare
    _wrong text;
begin
    select pattern.text into _wrong from unnest(patterns) as pattern (text)
     where pattern.text is null or pattern.text !~ '^[A-Za-z0-9_*][A-Za-z0-9_.:/*-]{0,199}$' limit 1;
    if found or coalesce(cardinality(patterns), 0) = 0 then
        perform postbus.refuse('PB402', format('%s pattern %s is not valid', kind, coalesce(quote_literal(_wrong), 'null')),
            format('give names of %ss, in which * stands for any text: orders.*', kind));
    end if;
end $$;
