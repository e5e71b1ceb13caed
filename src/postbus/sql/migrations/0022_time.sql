-- breaking
-- Functions that roles may call take no time as a parameter. The code files create these anew, and those with the suffix _as_of,
-- which do what they did at the time that is given, and which no role may call.
drop function if exists postbus.claim(text, text, integer, interval, text, bigint, timestamptz, boolean);
drop function if exists postbus.claim_suspects(text, text, integer, interval, boolean, timestamptz);
drop function if exists postbus.suspected(text[], timestamptz);
drop function if exists postbus.extend(uuid[], interval, timestamptz);
drop function if exists postbus.prolong_retrying(uuid[], bigint[], timestamptz);
drop function if exists postbus.claim_retrying(uuid[], integer, timestamptz, boolean);
drop function if exists postbus.retry(uuid, bigint[], interval, text, integer, timestamptz);
drop function if exists postbus.dead_letter(uuid, bigint[], text, text, timestamptz);
drop function if exists postbus.put_off(bigint, integer, uuid, text[], bigint[], bigint[], timestamptz[], text[], text[], text[], text[], bytea[],
                                        interval[], text[], text[], integer, timestamptz);
drop function if exists postbus.settle_retrying(bigint, integer, uuid, bigint[], text, interval, text, text, integer, timestamptz);
drop function if exists postbus.inbox_once(text, text, interval, timestamptz);
drop function if exists postbus.inbox_once_many(text, text[], interval, timestamptz);
drop function if exists postbus.make_known(integer, timestamptz);
drop function if exists postbus.continue_moves(text, timestamptz);
drop function if exists postbus.group_heartbeat(bigint[], bigint[], text[], bigint[], bigint[], bigint[], bigint[], double precision[], timestamptz);
drop function if exists postbus.lease_lanes(text, bigint[], uuid[], timestamptz);
drop function if exists postbus.leave_groups(text, bigint[], boolean, timestamptz);
drop function if exists postbus.pop(text, text, text, integer, interval, text, boolean, text, bigint, timestamptz);
drop function if exists postbus.pop_scope(text, text, text, text, text, integer, interval, boolean, bigint, timestamptz);
drop function if exists postbus.resurrect(bigint[], boolean, timestamptz, jsonb);
drop function if exists postbus.send_heartbeat(text, text, text, text, text, timestamptz, text);
drop function if exists postbus.return_expired(integer, timestamptz, timestamptz);
drop function if exists postbus.sweep(integer, timestamptz, boolean);
drop function if exists postbus.sweep_log(integer, timestamptz, boolean);
drop function if exists postbus.sweep_subscriptions(timestamptz, boolean);
drop function if exists postbus.sweep_health(timestamptz, bigint);
-- With the views that call them.
drop view if exists postbus.workers, postbus.sinks_away, postbus_outbox.outbox_topic_subscriptions, postbus.groups;
drop function if exists postbus.alive_since(timestamptz);
drop function if exists postbus.recent_calls(bigint, timestamptz);
drop function if exists postbus.force_complete(text, interval, text, boolean, timestamptz);
drop function if exists postbus.remove_group(text, text, boolean, timestamptz);
drop function if exists postbus.groups_near_timeout(double precision, timestamptz);
drop function if exists postbus.stuck_messages(interval, timestamptz);

-- What a claim returns: see claim_as_of.
create type postbus.claimed as (
    token           uuid,
    ends_at         timestamptz,
    lease_length    interval,
    next_floor      text,
    more            boolean,
    ordered         boolean,
    next_due        interval,
    moved           boolean,
    ids             bigint[],
    published_ats   timestamptz[],
    attempts        integer[],
    priorities      smallint[],
    keys            text[],
    correlation_ids text[],
    content_types   text[],
    headers         text[],
    payloads        bytea[]
);
create type postbus.claimed_suspects as (
    token           uuid,
    ends_at         timestamptz,
    lease_length    interval,
    ordered         boolean,
    ids             bigint[],
    published_ats   timestamptz[],
    attempts        integer[],
    priorities      smallint[],
    keys            text[],
    correlation_ids text[],
    content_types   text[],
    headers         text[],
    payloads        bytea[],
    outlasted       integer
);
