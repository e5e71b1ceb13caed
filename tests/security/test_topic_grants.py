"""A role with granted topics can do the granted action on these topics, and nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from postbus._db.migrator import script
from postbus.embedded import EmbeddedPostgres

pytestmark = pytest.mark.attack("grants of topics")

_PUBLISH = {
    "text": "select postbus_topics.publish('{topic}', 'x'::text)",
    "bytea": "select postbus_topics.publish('{topic}', 'x'::bytea)",
    "jsonb": "select postbus_topics.publish('{topic}', '{{}}'::jsonb, key => 'k')",
    "many": "select postbus_topics.publish_many('{topic}', array['1'::jsonb])",
}
_CONSUME = {
    "pop": "select * from postbus_topics.pop('{topic}', {group})",
    "pop and ack": "select * from postbus_topics.pop('{topic}', {group}, auto_ack => true)",
    "subscribe": "select postbus_topics.subscribe('{topic}', 'g')",
    "heartbeat": "select postbus_topics.send_heartbeat('{topic}', 'g')",
}
_VIEWS = ("topics", "messages", "dead_letters", "log", "groups")
_OURS = ("orders.placed", "orders.paid")
_OTHERS = ("invoices", "orders", "ordersXplaced", "xorders.placed", "ORDERS.placed", "order_s.placed")


class Land:
    """A database with topics, and a user for each action on `orders.*`."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.name = f"land_{secrets.token_hex(4)}"
        self._server = server
        with psycopg.connect(server.dsn(), autocommit=True) as root:
            root.execute(f"create database {self.name} template template0")
            for action in ("publish", "consume", "read", "nothing"):
                root.execute(f"create role {self.user(action)} login")
        with self.root() as root:
            root.execute(script().encode())
            for topic in (*_OURS, *_OTHERS):
                root.execute('select postbus.create_topic(%s, \'{"semantics": "PUB_SUB"}\')', [topic])
                root.execute("select postbus.subscribe(%s, 'g')", [topic])
                root.execute("select postbus.publish(%s, 'secret'::text)", [topic])
            for topic in ("orders.queue", "invoices.queue"):
                root.execute("select postbus.publish(%s, 'secret'::text)", [topic])
            for action in ("publish", "consume", "read"):
                root.execute("select postbus.grant_topic(%s, 'orders.*', %s)", [self.user(action), action])

    def user(self, action: str) -> str:
        return f"{action}_{self.name}"

    @contextmanager
    def root(self) -> Iterator[Any]:
        with psycopg.connect(self._server.dsn(self.name), autocommit=True) as conn:
            yield conn

    @contextmanager
    def as_user(self, action: str) -> Iterator[Any]:
        dsn = urlsplit(self._server.dsn(self.name))._replace(netloc=f"{self.user(action)}@").geturl()
        with psycopg.connect(dsn, autocommit=True) as conn:
            yield conn

    def raze(self) -> None:
        with psycopg.connect(self._server.dsn(), autocommit=True) as root:
            root.execute(f"drop database {self.name} with (force)")
            found = "select rolname from pg_roles where rolname like %s"
            for (role,) in root.execute(found, [f"%\\_{self.name}"]).fetchall():
                root.execute(f"drop role {role}")


@pytest.fixture(scope="module")
def land(server: EmbeddedPostgres) -> Iterator[Land]:
    made = Land(server)
    yield made
    made.raze()


def _statement(kind: str, topic: str) -> str:
    group = "null" if topic.endswith(".queue") else "'g'"
    return {**_PUBLISH, **_CONSUME}[kind].format(topic=topic, group=group)


@pytest.mark.parametrize("kind", [*_PUBLISH, *_CONSUME])
async def test_action_is_limited_to_granted_topics(land: Land, kind: str) -> None:
    """It works for topics that match the pattern, and for no other, however similar the name."""
    with land.as_user("publish" if kind in _PUBLISH else "consume") as conn:
        for topic in _OURS:
            conn.execute(_statement(kind, topic))
        for topic in (*_OTHERS, "invoices.queue", "orders%", "%", "*", ""):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not"):
                conn.execute(_statement(kind, topic))


@pytest.mark.parametrize("kind", [*_PUBLISH, *_CONSUME])
@pytest.mark.parametrize("action", ["publish", "consume", "read", "nothing"])
async def test_grant_of_one_action_is_no_grant_of_another(land: Land, kind: str, action: str) -> None:
    """A role that may publish may not consume, and so on."""
    if action == ("publish" if kind in _PUBLISH else "consume"):
        action = "nothing"
    with land.as_user(action) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(_statement(kind, _OURS[0]))


@pytest.mark.parametrize("view", _VIEWS)
async def test_views_show_only_granted_topics(land: Land, view: str) -> None:
    """A function in a condition, as cheap as possible, sees no other rows either."""
    column = "name" if view == "topics" else "topic"
    with land.as_user("read") as conn:
        conn.execute("set client_min_messages = notice")
        conn.execute(
            "create function pg_temp.tells(text) returns boolean language plpgsql cost 0.0000001 as "
            "$$ begin raise notice 'saw %', $1; return true; end $$"
        )
        seen: list[str] = []
        conn.add_notice_handler(lambda notice: seen.append(str(notice.message_primary).removeprefix("saw ")))
        rows = conn.execute(f"select {column} from postbus_topics.{view} where pg_temp.tells({column})").fetchall()
    assert {row[0] for row in rows} | set(seen) <= {*_OURS, "orders.queue"}
    assert rows or view == "dead_letters"
    for action in ("publish", "consume", "nothing"):
        with land.as_user(action) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(f"select * from postbus_topics.{view}")


@pytest.mark.parametrize("action", ["publish", "consume", "read"])
async def test_grant_opens_nothing_of_the_roles(land: Land, action: str) -> None:
    """No function, view or table of the schema postbus can be reached."""
    with land.root() as root:
        calls = root.execute(
            "select f.oid::regprocedure::text from pg_proc f where f.pronamespace = 'postbus'::regnamespace"
        ).fetchall()
        rights = (
            "select has_schema_privilege(%s, 'postbus', 'usage'), has_schema_privilege(%s, 'postbus_topics', 'create')"
        )
        assert root.execute(rights, [land.user(action)] * 2).fetchone() == (False, False)
    assert calls
    with land.as_user(action) as conn:
        for statement in (
            "select * from postbus.claim('orders.placed', 'm', 1)",
            "select postbus.publish('orders.placed', 'x'::text)",
            "select * from postbus.messages",
            "select * from postbus.queued",
            "select postbus.grant_topic(current_user::text, '*', 'read')",
            "select postbus_topics.check_granted('read', 'x')",
            "insert into postbus.topic_grant values ('x', 1, '*', 'read', 'x')",
        ):
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction)):
                conn.execute(statement)


@pytest.mark.parametrize("way", ["set role", "set role to another", "planted setting", "planted function"])
async def test_caller_is_the_login_or_its_set_role(land: Land, way: str) -> None:
    """A role without membership cannot be claimed, and no look-alike can replace the check."""
    group = f"group_{way.replace(' ', '_')}_{land.name}"
    with land.root() as root:
        root.execute(
            f"create role {group}; grant {group} to {land.user('nothing')}; grant create on schema public to public"
        )
        root.execute("select postbus.grant_topic(%s, 'invoices', 'publish')", [group])
    try:
        with land.as_user("nothing") as conn:
            if way == "set role":
                conn.execute(f"set role {group}")
                conn.execute(_statement("text", "invoices"))
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(_statement("text", "orders.placed"))
                return
            if way == "set role to another":
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(f"set role {land.user('publish')}")
            elif way == "planted setting":
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(f"select set_config('role', '{land.user('publish')}', false)")
            else:
                conn.execute(
                    "create function public.current_setting(name) returns text language sql as "
                    f"$$ select '{land.user('publish')}'::text $$; set search_path = public, pg_catalog, pg_temp"
                )
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(_statement("text", "orders.placed"))
            conn.execute(_statement("text", "invoices"))  # as a member of the group
    finally:
        with land.root() as root:
            root.execute("drop function if exists public.current_setting(name)")
            root.execute("select postbus.revoke_topic(%s)", [group])
            root.execute(f"drop owned by {group}; drop role {group}")


async def test_revoked_grant_gives_nothing_and_closes_the_schema(land: Land) -> None:
    """Revoking the last grant removes all privileges, and revoking one of several only its own."""
    user = f"former_{land.name}"
    with land.root() as root:
        root.execute(f"create role {user}")
        for pattern, action in (("a.*", "publish"), ("b.*", "publish"), ("a.*", "read")):
            root.execute("select postbus.grant_topic(%s, %s, %s)", [user, pattern, action])
        assert root.execute("select count(*) from postbus.topic_grants where role = %s", [user]).fetchone() == (3,)
        assert root.execute("select postbus.revoke_topic(%s, 'a.*')", [user]).fetchone() == (2,)
        root.execute(f"set role {user}")
        root.execute(_statement("text", "b.x"))
        for refused in (_statement("text", "a.x"), "select * from postbus_topics.topics"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                root.execute(refused)
        root.execute("reset role")
        assert root.execute("select postbus.revoke_topic(%s)", [user]).fetchone() == (1,)
        root.execute(f"drop role {user}")  # nothing depends on it any more


async def test_recreated_role_inherits_no_grant(land: Land) -> None:
    """A role that was dropped and created again has to be granted again."""
    user = f"again_{land.name}"
    with land.root() as root:
        root.execute(f"create role {user}")
        root.execute("select postbus.grant_topic(%s, 'orders.*', 'publish')", [user])
        root.execute(f"drop owned by {user}; drop role {user}; create role {user}")
        root.execute("update postbus.installed set code_checksum = 'old'")
        assert root.execute("select is_there from postbus.topic_grants where role = %s", [user]).fetchone() == (False,)
        root.execute("select postbus.apply_topic_grants(%s)", [user])
        root.execute("select postbus.grant_topic(%s, 'invoices', 'publish')", [user])
        root.execute(f"set role {user}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            root.execute(_statement("text", "orders.placed"))
        root.execute("reset role")
        root.execute("select postbus.revoke_topic(%s)", [user])
        root.execute(f"drop role {user}")


@pytest.mark.parametrize(
    ("pattern", "action"), [("%", "read"), ("a'b", "read"), ("", "read"), (None, "read"), ("*", "drop"), ("*", None)]
)
async def test_meaningless_grants_are_refused(land: Land, pattern: str | None, action: str | None) -> None:
    """These are a pattern that no topic can match, and an unknown action."""
    with land.root() as root, pytest.raises(psycopg.Error) as refused:
        root.execute("select postbus.grant_topic(%s, %s, %s)", [land.user("nothing"), pattern, action])
    assert refused.value.sqlstate == "PB402"


@pytest.mark.parametrize("role", ["nobody_there", "public", "x; drop schema postbus"])
async def test_grants_to_no_role_are_refused(land: Land, role: str) -> None:
    """A grant goes neither to everybody nor to a missing role."""
    with land.root() as root, pytest.raises(psycopg.Error) as refused:
        root.execute("select postbus.grant_topic(%s, '*', 'read')", [role])
    assert refused.value.sqlstate == "PB402"
