-- A record of a scope, to be stored, with where the group starts: `new` looks back by look_back.
-- Refuses what makes no sense.
create or replace function postbus.new_scope(
    scope     postbus.scope,
    mode      text,
    start_at  timestamptz,
    look_back interval
) returns postbus.scope
language plpgsql as $$
begin
    if mode is null or mode not in ('new', 'all', 'timestamp') then
        perform postbus.refuse('PB402', format('mode %s is not known', coalesce(quote_literal(mode), 'null')), 'use new, all or timestamp');
    elsif (mode = 'timestamp') <> (start_at is not null) or not isfinite(start_at) then
        perform postbus.refuse('PB402', 'start_at belongs to mode timestamp', 'give both, or neither of them');
    elsif (look_back between interval '0' and interval '1000 years') is not true then
        perform postbus.refuse('PB402', format('look_back %s is not a duration to look back by', coalesce(look_back::text, 'null')),
            'give zero or more, such as 4 seconds');
    end if;
    scope.mode := mode;
    scope.snapshot := pg_current_snapshot();
    scope.start_at := case mode when 'new' then scope.recorded_at - look_back else new_scope.start_at end;
    return scope;
end $$;
