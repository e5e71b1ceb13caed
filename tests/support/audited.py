"""The expected audit log: every administrative function, called once, and the entries that this makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.queue_sql import ack, claim, publish

# A topic of each kind, groups in every state, a token and a webhook: what the calls below act on.
_WORLD = """
select postbus.create_topic('q');
select postbus.create_topic('paused');
select postbus.pause_topic('paused');
select postbus.create_topic('done', '{"retention": "1 hour"}');
select postbus.create_topic('log', '{"semantics": "PUB_SUB", "lanes": 1}');
select postbus.create_topic('own', '{"semantics": "PUB_SUB", "storage": "own"}');
select postbus.publish_many('log', array['1', '2', '3']::bytea[]);
select postbus.subscribe('log', 'g', 'FROM_BEGINNING');
select postbus.subscribe('log', 'stopped');
select postbus.set_group_state('log', 'stopped', 'PAUSED');
select postbus.subscribe('log', 'dead');
update postbus.subscription set state = 'DEAD' where group_name = 'dead';
select postbus.subscribe('log', 'late', 'FROM_BEGINNING', catch_up => '{"beside_from": 1}');
select postbus.subscribe('log', 'halted', 'FROM_BEGINNING', catch_up => '{"beside_from": 1}');
select postbus.set_catch_up('log', 'halted', false);
select postbus.subscribe_scope('wide', pattern => 'log.#');
select postbus.grant_topic('pg_monitor', 'orders.*', 'read');
select postbus.create_token('tok', 'hash-of-it', 'deploy', array['producer']);
select postbus.create_webhook('hook', 'q', 'https://old.example/path-secret', 'a-secret-of-16-characters');
select postbus.import_messages('old', 'log', array['7'], array['x'::bytea], 'text/plain', '{null}', '{null}', '{null}',
                               '{null}', '{0}', '{null}');
"""


async def make_world(conn: Any) -> None:
    """Set up what ACTS need, in a database of its own; `conn` owns the schema."""
    for statement in filter(str.strip, _WORLD.split(";")):
        await conn.execute(statement)
    await publish(conn, "dead", topic="q")
    claimed = await claim(conn, topic="q")
    await conn.execute("select postbus.dead_letter($1, $2, 'no')", claimed["token"], claimed["ids"])
    await publish(conn, "one", "two", topic="q")
    await publish(conn, "past", topic="done")
    await ack(conn, await claim(conn, topic="done"))
    await conn.execute("update postbus.finished set finished_at = clock_timestamp() - interval '2 hours'")
    await conn.execute("""
        insert into postbus.dead_letter (id, subscription_id, topic_id, reason, published_at, attempts, priority,
                                         content_type, payload)
        select 1024, s.id, s.topic_id, 'no', clock_timestamp(), 1, 4, 'text/plain', 'payload-of-it'
          from postbus.subscription s where s.group_name = 'g'""")


async def role_of(conn: Any, role: str) -> str:
    """Return the name of the database's role for producers, consumers, observers, operators or admins."""
    name: str = await conn.fetchval(
        "select r.rolname from pg_namespace n cross join aclexplode(n.nspacl) as given "
        "join pg_roles r on r.oid = given.grantee where n.nspname = 'postbus' and starts_with(r.rolname, $1) limit 1",
        f"postbus_{role}",
    )
    return name


@dataclass(frozen=True)
class Act:
    """A call, and the expected columns of its entry."""

    sql: str
    action: str
    topic: str | None = None
    group_name: str | None = None
    target: str | None = None
    affected: int | None = None
    before: Any = None
    after: Any = None
    given: Any = None

    @property
    def function(self) -> str:
        return self.sql.partition("postbus")[2].partition(".")[2].partition("(")[0]


ACTS = [
    Act("select postbus.create_topic('new', '{\"max_attempts\": 3}')", "topic.create", "new",
        after={"max_attempts": 3}),
    Act("select postbus.set_topic('q', '{\"max_attempts\": 3}')", "topic.set", "q",
        before={"max_attempts": 25}, after={"max_attempts": 3}),
    Act("select postbus.pause_topic('q')", "topic.pause", "q"),
    Act("select postbus.resume_topic('paused')", "topic.resume", "paused"),
    Act("select postbus.purge_topic('q')", "topic.purge", "q", affected=2),
    Act("select postbus.delete_topic('q', force => true)", "topic.delete", "q", affected=3, given={"force": True}),
    Act("select postbus.delete_topic('log', force => true)", "topic.delete", "log", affected=5, given={"force": True}),
    Act("select postbus.delete_topic('own')", "topic.delete", "own", affected=0, given={"force": False}),
    Act("select postbus.move_topic('q', array['h'])", "topic.move", "q", affected=2,
        given={"groups": ["h"], "hand_over": False}),
    Act("select postbus.subscribe('log', 'new')", "group.subscribe", "log", "new"),
    Act("select postbus.subscribe('log', 'g', on_failure => 'pass')", "group.subscribe", "log", "g",
        before={"on_failure": "block"}, after={"on_failure": "pass"}),
    Act("select postbus.subscribe('log', 'dead')", "group.subscribe", "log", "dead",
        before={"state": "DEAD"}, after={"state": "ACTIVE"}),
    Act("select postbus.subscribe_scope('new', pattern => 'log.#')", "group.subscribe", None, "new",
        target="pattern log.#", affected=1),
    Act("select postbus.subscribe_scope('keyed', topic => 'log', key => 'k')", "group.subscribe", "log", "keyed",
        target="key k", affected=1),
    Act("select postbus.set_group_state('log', 'g', 'PAUSED')", "group.pause", "log", "g",
        before={"state": "ACTIVE"}, after={"state": "PAUSED"}),
    Act("select postbus.set_group_state('log', 'stopped', 'ACTIVE')", "group.resume", "log", "stopped"),
    Act("select postbus.set_group_state('log', 'g', 'CANCELLED')", "group.cancel", "log", "g"),
    Act("select postbus.pause_group('log', 'g')", "group.pause", "log", "g"),
    Act("select postbus.resume_group('log', 'stopped')", "group.resume", "log", "stopped"),
    Act("select postbus.resurrect_group('log', 'dead')", "group.resurrect", "log", "dead", affected=1),
    Act("select postbus.resume_catch_up('log', 'halted')", "catch_up.resume", "log", "halted"),
    Act("select postbus.grant_topic('pg_monitor', 'orders.*', 'publish')", "role.grant_topic", target="pg_monitor",
        given={"pattern": "orders.*", "action": "publish"}),
    Act("select postbus.revoke_topic('pg_monitor')", "role.revoke_topic", target="pg_monitor", affected=1),
    Act("select postbus.set_scope_state('wide', 'PAUSED', pattern => 'log.#')", "group.pause", None, "wide",
        target="pattern log.#", affected=1),
    Act("select postbus.forget_scope('wide', pattern => 'log.#', cancel => true)", "scope.forget", None, "wide",
        target="pattern log.#", affected=1, given={"cancel": True}),
    Act("select postbus.seek('log', 'g', 'FROM_NOW')", "group.seek", "log", "g", affected=0),
    Act("select postbus.seek('log', 'stopped', 'FROM_BEGINNING')", "group.seek", "log", "stopped", affected=4),
    Act("select postbus.resurrect(array(select subscription_id from postbus.groups where group_name = 'dead'))",
        "group.resurrect", "log", "dead", affected=1, given={"with_catch_up": True}),
    Act("select postbus.set_catch_up('log', 'late', false)", "catch_up.cancel", "log", "late"),
    Act("select postbus.force_complete('log', '0 s', 'g')", "group.force_complete", "log", "g", affected=4,
        after={"skipped": {"g": 4}}),
    Act("select postbus.remove_group('log', 'stopped')", "group.remove", "log", "stopped", given={"force": False}),
    Act("select postbus.redrive('q')", "dead_letters.redrive", "q", affected=1),
    Act("select postbus.redrive('log', group_name => 'g', ids => '{1024}', reason_like => '%no%')",
        "dead_letters.redrive", "log", "g", affected=1, given={"ids": [1024], "reason_like": "%no%"}),
    Act("select postbus.purge_dead_letters('log', group_name => 'g')", "dead_letters.purge", "log", "g", affected=1),
    Act("select postbus.set_sweeping('{\"interval\": \"1 minute\"}')", "sweeping.set",
        before={"interval": "00:05:00"}, after={"interval": "00:01:00"}),
    Act("select postbus.set_health_limits('{\"lag\": 7}', 'log', 'g')", "health.set", "log", "g", after={"lag": 7}),
    Act("select postbus.rebase(as_copy => true)", "database.rebase", affected=8, given={"as_copy": True}),
    Act("select postbus.import_messages('old', 'q', array['1'], array['x'::bytea], 'text/plain', '{null}', '{null}', "
        "'{null}', '{null}', '{0}', '{null}')", "import.messages", "q", target="old", affected=1),
    Act("select postbus.import_group('old', 'log', 'moved', 'ACTIVE')", "group.subscribe", "log", "moved"),
    Act("select postbus.import_deferred('old', 'log', 'g', array['7'], array['x'::bytea], 'text/plain', '{null}', "
        "'{null}', '{null}', '{null}', '{0}', '{null}')", "import.deferred", "log", "g", target="old", affected=1),
    Act("select postbus.import_seen('old', array['8', '9'])", "import.seen", target="old", affected=2),
    Act("select postbus.create_token('t2', 'hash-of-it', 'shop', array['admin'])", "token.create", target="t2",
        after={"name": "shop", "roles": ["admin"], "topics": ["*"], "groups": ["*"], "payloads": True}),
    Act("select postbus.revoke_token('tok')", "token.revoke", target="tok", before={"name": "deploy"}),
    Act("select postbus.create_webhook('w2', 'done', 'https://new.example/path-secret', 'a-secret-of-16-characters')",
        "webhook.create", "done", target="w2",
        after={"url": "https://new.example/...", "concurrency": 4, "timeout": "00:00:10", "enabled": True}),
    Act("select postbus.set_webhook('hook', url => 'https://new.example', secret => 'another-secret-of-mine', "
        "enabled => false)", "webhook.set", "q", target="hook",
        before={"url": "https://old.example/...", "enabled": True},
        after={"url": "https://new.example", "enabled": False, "new_url": True, "new_secret": True}),
    Act("select postbus.delete_webhook('hook')", "webhook.delete", "q", target="hook"),
    Act("select postbus_outbox.cleanup_completed_outbox_messages()", "sweep.cleanup", affected=1),
]  # fmt: skip

UNCHANGED = [
    "select postbus.set_topic('q', '{\"max_attempts\": 25}')",
    "select postbus.pause_topic('paused')",
    "select postbus.resume_topic('q')",
    "select postbus.purge_topic('paused')",
    "select postbus.purge_topic('q', dry_run => true)",
    "select postbus.move_topic('q', array['h'], dry_run => true)",
    "select postbus.subscribe('log', 'g')",
    "select postbus.subscribe_scope('wide', pattern => 'log.#')",
    "select postbus.set_group_state('log', 'g', 'ACTIVE')",
    "select postbus.set_scope_state('wide', 'ACTIVE', pattern => 'log.#')",
    "select postbus.seek('log', 'g', 'FROM_NOW', dry_run => true)",
    "select postbus.set_catch_up('log', 'late', true)",
    "select postbus.force_complete('log', '1 day')",
    "select postbus.force_complete('log', '0 s', dry_run => true)",
    "select postbus.redrive('q', dry_run => true)",
    "select postbus.redrive('paused')",
    "select postbus.purge_dead_letters('q', dry_run => true)",
    "select postbus.purge_dead_letters('paused')",
    "select postbus.set_sweeping('{}')",
    "select postbus.set_health_limits('{}')",
    "select postbus.import_seen('old', array['7'])",
    "select postbus.set_webhook('hook')",
    "select postbus.ensure_topic('used')",
    "select postbus.sweep()",
]
"""Calls that change nothing, or are no action of a person."""

NO_ACTIONS = {
    "it only reads": {
        "schema_state", "topic_id", "check_token", "source", "event_id", "is_event_id", "sweeping", "sweep_health",
        "alive_for", "recent_calls", "health_limits", "payload_json", "payloads_of", "lines_of", "first_id",
        "group_lag", "group_metrics", "deliveries_of", "message_state", "delivery_statuses_of_topic", "states_of_topic",
        "delivery_at", "settled_at", "first_wanted", "last_catch_up", "log_message", "copies_of",
        "groups_near_timeout", "stuck_messages", "zero_subscription_messages", "inconsistencies", "in_scope",
        "pattern_regex", "retained", "storages", "role_name", "roles", "log_page",
    },
    "the HTTP servers ask all the time": {"webhooks_to_run"},
    "processes do it again and again, and it removes only what is past its time": {
        "sweep", "sweep_log", "sweep_subscriptions", "return_expired", "continue_moves", "publish_partitions",
        "take_group_events",
    },
    "processes tell how they are": {
        "note_failure", "note_sink_away", "forget_sink_away", "note_sweeper", "forget_sweeper", "note_token_uses",
    },
    "consuming processes do it when they start, or when a handler fails": {"ensure_topic", "inbox_forget"},
}  # fmt: skip
"""Functions of administrators that leave no entry, by the reason."""
