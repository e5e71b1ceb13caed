-- Functions whose signatures change; the code files create them anew.
drop function if exists postbus.resurrect(bigint[], boolean, timestamptz, jsonb);
drop function if exists postbus.shelve(bigint, postbus.topic, integer, bigint, integer, text, uuid, text, interval, timestamptz);
drop function if exists postbus.pop_group(text, text, text, integer, interval, text, boolean, text, bigint, timestamptz);
drop function if exists postbus.subscribe_scope(text, text, text, text, text, text, text, timestamptz, interval, text, jsonb);
drop function if exists postbus.new_scope(postbus.scope, text, timestamptz, interval);
drop function if exists postbus.check_idle(postbus.topic);

-- Where a group starts that was subscribed with mode message.
alter table postbus.scope add column start_id bigint;

-- Settlements of groups that pull leave these: their transactions may stay open for long, and must not lock the group's row.
-- detect_dead takes them to subscription.seen_at.
create table postbus.sign_of_life (
    subscription_id bigint not null,
    at              timestamptz not null
);
create index sign_of_life_idx on postbus.sign_of_life (subscription_id);

-- Pops from all topics of a scope: while one has messages in hand, its group lives in each of the topics.
create table postbus.scope_pop (
    scope_id bigint not null,
    token    uuid not null
);
