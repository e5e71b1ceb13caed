-- The rights of the roles of Postbus. All rights are revoked first, so that no role may call a new function before it is listed
-- here.
--
-- Roles carry the name of the database: see role_name. Roles of another name got their rights before the database was renamed or
-- copied, or from a version of Postbus whose roles were those of the whole server: these rights are revoked, too.
do $$
declare
    _all     text[] := array['producer', 'consumer', 'observer', 'operator', 'admin'];
    _readers text[] := array['observer', 'operator', 'admin'];
    _role    text;
    _names   text;       -- of the roles that exist
    _others  text;       -- public, these roles, and those of another name
    _grant   record;
    _view    text;
begin
    foreach _role in array _all loop
        begin
            if not exists (select from pg_roles where rolname = postbus.role_name(_role)) then
                execute format('create role %I nologin', postbus.role_name(_role));
            end if;
        exception
            when duplicate_object or unique_violation then
                null;       -- another session has just created it
            when insufficient_privilege then
                raise warning 'role % is missing and cannot be created by %', postbus.role_name(_role), current_user
                    using hint = format('let an administrator run: create role %I nologin; then migrate again', postbus.role_name(_role));
        end;
    end loop;

    select string_agg(format('%I', r.rolname), ', ') into _names
      from pg_roles r join unnest(_all) as one (role) on r.rolname = postbus.role_name(one.role);
    select concat_ws(', ', 'public', _names, string_agg(distinct format('%I', r.rolname), ', ')) into _others
      from pg_namespace n cross join aclexplode(n.nspacl) as given join pg_roles r on r.oid = given.grantee
     where n.nspname = 'postbus' and r.rolname ~ '^postbus_(producer|consumer|observer|operator|admin)(_|$)'
       and r.rolname <> all (array(select postbus.role_name(one.role) from unnest(_all) as one (role)));
    execute format('revoke all on schema postbus, postbus_outbox, postbus_topics from %s', _others);
    execute format('revoke all on all tables in schema postbus, postbus_outbox, postbus_topics from %s', _others);
    execute format('revoke all on all sequences in schema postbus from %s', _others);
    execute format('revoke all on all functions in schema postbus, postbus_outbox, postbus_topics from %s', _others);
    perform postbus.apply_topic_grants(g.role) from (select distinct t.role from postbus.topic_grant t join pg_roles r on r.rolname = t.role) as g;
    if _names is null then
        return;
    end if;
    execute format('grant usage on schema postbus to %s', _names);

    for _grant in
        select f.oid::regprocedure as signature, string_agg(format('%I', r.rolname), ', ' order by r.rolname) as names
          from (values
            (_all, '
                schema_state role_name roles topic_id check_token note_token_uses source event_id is_event_id
            '),
            (array['producer'], '
                publish publish_many publish_lines wake
            '),
            (array['consumer'], '
                claim claim_suspects not_alone suspected pop pop_scope
                extend lease_owners ack ack_leases retry dead_letter release
                heartbeat sign_off wake
                read_log advance note_done defer
                claim_deferred extend_deferred deferred_of settle_deferred
                lease_lanes release_lanes leave_groups hold_lane clear_caution
                group_heartbeat send_heartbeat report_catch_up
                group_topics scope_news keys_of
                inbox_once inbox_once_many
            '),
            (array['consumer', 'admin'], '
                ensure_topic subscribe subscribe_scope
                sweep sweep_log sweep_subscriptions storages return_expired
                note_sweeper forget_sweeper note_sink_away forget_sink_away note_failure
                take_group_events inbox_forget
            '),
            (_readers, '
                sweeping sweep_health alive_for recent_calls health_limits
                payload_json payloads_of lines_of first_id
                group_lag group_metrics groups_near_timeout last_catch_up
                deliveries_of delivery_at message_state log_message log_page copies_of settled_at
                delivery_statuses_of_topic states_of_topic stuck_messages zero_subscription_messages inconsistencies
                in_scope pattern_regex first_wanted retained
            '),
            (array['operator', 'admin'], '
                pause_topic resume_topic
                pause_group resume_group set_scope_state
                seek redrive resurrect_group resume_catch_up
            '),
            (array['admin'], '
                create_topic publish_partitions set_topic move_topic continue_moves purge_topic delete_topic
                set_group_state forget_scope resurrect set_catch_up force_complete remove_group
                purge_dead_letters
                set_sweeping set_health_limits
                rebase import_messages import_group import_deferred import_seen
                create_token revoke_token
                grant_topic revoke_topic
                create_webhook set_webhook delete_webhook webhooks_to_run
            ')
          ) as g (roles, functions)
         cross join unnest(g.roles) as one (role)
          join pg_roles r on r.rolname = postbus.role_name(one.role)
          join pg_proc f on f.proname = any (string_to_array(translate(g.functions, E'\n', ' '), ' ')) and f.pronamespace = 'postbus'::regnamespace
         group by f.oid
    loop
        execute format('grant execute on function %s to %s', _grant.signature, _grant.names);
    end loop;

    select string_agg(format('%I', r.rolname), ', ') into _names
      from pg_roles r join unnest(_readers) as one (role) on r.rolname = postbus.role_name(one.role);
    if _names is not null then
        foreach _view in array array['topics', 'messages', 'dead_letters', 'workers', 'log', 'groups', 'members', 'catch_ups', 'deliveries',
                                     'message_states', 'imported', 'imported_group', 'sweep_jobs', 'scopes', 'inbox', 'sinks_away', 'audit'] loop
            execute format('grant select on postbus.%I to %s', _view, _names);
        end loop;
        execute format('grant usage on schema postbus_outbox to %s', _names);
        execute format('grant select on all tables in schema postbus_outbox to %s', _names);
    end if;
    select r.rolname into _role from pg_roles r where r.rolname = postbus.role_name('admin');
    if found then
        execute format('grant execute on function postbus_outbox.cleanup_completed_outbox_messages() to %I', _role);
        execute format('grant select on postbus.tokens, postbus.webhooks, postbus.topic_grants to %I', _role);
    end if;

    delete from postbus.role_granted g where true;
    insert into postbus.role_granted (role, oid)
    select one.role, r.oid from unnest(_all) as one (role) join pg_roles r on r.rolname = postbus.role_name(one.role);
end $$;
