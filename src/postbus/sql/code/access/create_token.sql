-- Adds a token for the HTTP server; only its hash is given. Roles are those of the database, without postbus_. The roles consumer
-- and admin include payloads, so a token without payloads cannot have them. created_by is the login, with the actor that it names:
-- see note_action.
--
-- Writes: token; see note_action.
create or replace function postbus.create_token(
    id         text,
    hash       bytea,
    name       text,
    roles      text[],
    topics     text[] default '{*}',
    expires_in interval default null,
    groups     text[] default '{*}',
    payloads   boolean default true
) returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    _wrong      text;
    _expires_at timestamptz := clock_timestamp() + expires_in;
begin
    if coalesce(create_token.name, '') !~ '^[^[:cntrl:]]{1,200}$' then
        perform postbus.refuse('PB402', 'a token needs a name', 'say what it is for, in 1 to 200 characters');
    end if;
    select role.name into _wrong from unnest(roles) as role (name)
     where role.name is null or role.name not in ('producer', 'consumer', 'observer', 'operator', 'admin') limit 1;
    if found or coalesce(cardinality(roles), 0) = 0 then
        perform postbus.refuse('PB402', format('role %s is not known', coalesce(quote_literal(_wrong), 'null')),
            'use one or more of producer, consumer, observer, operator and admin');
    end if;
    perform postbus.check_patterns(topics, 'topic');
    perform postbus.check_patterns(groups, 'group');
    if payloads is not true and roles && array['consumer', 'admin'] then
        perform postbus.refuse('PB402', 'the roles consumer and admin include payloads, and this token is without payloads',
            'without payloads use producer, observer and operator');
    end if;
    if expires_in <= interval '0' then
        perform postbus.refuse('PB402', format('the token would expire after %s', expires_in), 'give a time above zero, such as 90 days');
    end if;
    insert into postbus.token (id, hash, name, roles, topics, expires_at, groups, payloads, created_by)
    values (create_token.id, create_token.hash, create_token.name, create_token.roles, create_token.topics, _expires_at,
            create_token.groups, create_token.payloads is true,
            concat_ws(' for ', session_user, nullif(postbus.one_line(current_setting('postbus.actor', true)), '')));
    perform postbus.note_action('token.create', target => create_token.id, after => jsonb_strip_nulls(jsonb_build_object(
        'name', create_token.name, 'roles', create_token.roles, 'topics', create_token.topics, 'groups', create_token.groups,
        'payloads', create_token.payloads is true, 'expires_at', _expires_at)));
    return _expires_at;
end $$;
