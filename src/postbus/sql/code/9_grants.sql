-- Who may do what. Everything is taken from everybody first, so that a function added later is closed
-- until it stands here.
do $$
declare
    _role     text;
    _grant    record;
    _view     text;
begin
    foreach _role in array array['postbus_producer', 'postbus_consumer', 'postbus_observer', 'postbus_admin'] loop
        begin
            if not exists (select from pg_roles where rolname = _role) then
                execute format('create role %I nologin', _role);
            end if;
        exception
            when duplicate_object or unique_violation then
                null;       -- another database of this server made it just now
            when insufficient_privilege then
                raise warning 'role % is missing and cannot be created by %', _role, current_user
                    using hint = 'let an administrator run: create role ' || _role;
        end;
    end loop;

    revoke all on schema postbus from public;
    revoke all on all tables in schema postbus from public;
    revoke all on all sequences in schema postbus from public;
    revoke all on all functions in schema postbus, postbus_outbox from public;

    for _grant in
        select role.name, f.oid::regprocedure as signature
          from (values
            (array['postbus_producer', 'postbus_consumer', 'postbus_observer', 'postbus_admin'],
             array['schema_state', 'topic_id', 'check_token', 'note_token_uses', 'source', 'event_id', 'is_event_id']),
            (array['postbus_producer'],
             array['publish', 'publish_many', 'publish_lines', 'ring']),
            (array['postbus_consumer'],
             array['claim', 'claim_suspects', 'not_alone', 'suspected', 'pop', 'pop_scope', 'extend', 'lease_owners', 'ack', 'ack_leases', 'retry', 'dead_letter', 'release', 'heartbeat', 'sign_off', 'ring',
                   'read_log', 'advance', 'note_done', 'put_off', 'claim_retrying', 'prolong_retrying', 'retrying_of', 'settle_retrying', 'lease_lanes', 'release_lanes',
                   'leave_groups', 'hold_lane', 'calm_lane', 'group_heartbeat', 'send_heartbeat', 'report_catch_up',
                   'group_topics', 'scope_news', 'keys_of', 'inbox_once', 'inbox_once_many']),
            (array['postbus_consumer', 'postbus_admin'],
             array['ensure_topic', 'subscribe', 'subscribe_scope', 'sweep', 'note_sink_away', 'forget_sink_away', 'note_sweeper', 'forget_sweeper', 'sweep_log', 'sweep_subscriptions', 'take_group_events', 'storages', 'return_expired',
                   'note_failure', 'inbox_forget']),
            (array['postbus_observer', 'postbus_admin'],
             array['sweeping', 'sweep_health', 'alive_for', 'recent_calls', 'health_limits', 'payload_json', 'payloads_of', 'lines_of', 'first_id', 'group_lag', 'group_metrics', 'deliveries_of', 'message_state',
                   'fates_of_topic', 'states_of_topic', 'delivery_at', 'settled_at', 'first_wanted', 'last_catch_up', 'log_message', 'log_page', 'copies_of', 'groups_near_timeout', 'stuck_messages',
                   'zero_subscription_messages', 'inconsistencies', 'in_scope', 'pattern_regex', 'retained']),
            (array['postbus_admin'],
             array['create_topic', 'make_known', 'set_topic', 'move_topic', 'continue_moves', 'pause_topic', 'resume_topic', 'purge_topic', 'delete_topic',
                   'set_group_state', 'set_scope_state', 'forget_scope', 'seek', 'resurrect', 'set_catch_up', 'force_complete', 'remove_group',
                   'redrive', 'purge_dead_letters',
                   'set_sweeping', 'set_health_limits', 'rebase', 'import_messages', 'import_group', 'import_retrying', 'import_seen', 'create_token', 'revoke_token', 'create_webhook',
                   'set_webhook', 'delete_webhook', 'webhooks_to_run'])
          ) as g (roles, functions)
         cross join unnest(g.roles) as role (name)
          join pg_roles on pg_roles.rolname = role.name
          join pg_proc f on f.proname = any (g.functions) and f.pronamespace = 'postbus'::regnamespace
    loop
        execute format('grant usage on schema postbus to %I', _grant.name);
        execute format('grant execute on function %s to %I', _grant.signature, _grant.name);
    end loop;

    foreach _role in array array['postbus_observer', 'postbus_admin'] loop
        if exists (select from pg_roles where rolname = _role) then
            foreach _view in array array['topics', 'messages', 'dead_letters', 'workers', 'log', 'groups', 'members', 'catch_ups', 'deliveries', 'message_states',
                                         'imported', 'imported_group', 'sweep_jobs', 'scopes', 'inbox', 'sinks_away',
                                         'audit'] loop
                execute format('grant select on postbus.%I to %I', _view, _role);
            end loop;
            execute format('grant usage on schema postbus_outbox to %I', _role);
            execute format('grant select on all tables in schema postbus_outbox to %I', _role);
        end if;
    end loop;
    if exists (select from pg_roles where rolname = 'postbus_admin') then
        grant execute on function postbus_outbox.cleanup_completed_outbox_messages() to postbus_admin;
        grant select on postbus.tokens, postbus.webhooks to postbus_admin;
    end if;
end $$;
