"""Connecting to a server, or to the primary of several.

With several hosts, asyncpg tries one after the other within one time limit. A dead and silent host uses all of it, and
the error of a host that breaks connections ends the attempt. Here every host is tried.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from postbus._db.addresses import address_problem, is_port
from postbus._db.error_map import DSN_REMEDY, translate
from postbus._db.search_path import PIN
from postbus.errors import DatabaseUnavailable, InvalidInput

TIMEOUT = 10.0  # seconds
PROGRAM = ContextVar("program", default="postbus")
"""The application_name of our connections if the DSN has none. Commands set their own name."""
_NEXT_AFTER = 1.0  # seconds until the next host is tried beside one that has not answered

# A dead peer is noticed after half a minute. By default that takes a quarter of an hour, or hours.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}

_origins: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_pooled: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Connections that go through a pooler, with the isolation level that their transactions have by default."""

# A server, database or role may limit how long a session idles or a statement takes. Such limits are meant for
# programs that misbehave, but a worker idles between messages and waits for locks. On connections of our own they are
# switched off for the session. Behind a pooler the session is shared, so nothing is set there, and the transactions in
# `commit.py` set what they need. `transaction_timeout` came with PostgreSQL 17.
_UNLIMITED = (
    "idle_session_timeout",
    "idle_in_transaction_session_timeout",
    "transaction_timeout",
    "statement_timeout",
    "lock_timeout",
)
_NO_LIMITS = ", ".join(
    f"case when pg_catalog.current_setting('{one}', true) is not null "
    f"then pg_catalog.set_config('{one}', '0', false) end"
    for one in _UNLIMITED
)
# The search path is pinned for the session, so that names in our statements cannot mean objects of another schema. This
# statement runs before that, so each name in it is qualified; so it is in all statements outside of transactions, which
# may run behind a pooler.
_PREPARE_SESSION = f"""
    select pg_catalog.pg_backend_pid() as pid, pg_catalog.current_setting('transaction_isolation') as isolation,
           case when pg_catalog.pg_backend_pid() operator(pg_catalog.=) $1
                then array[pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false),
                           pg_catalog.set_config('default_transaction_isolation', 'read committed', false),
                           {_NO_LIMITS}] end
"""

_ARRAYS = ("int2", "int4", "int8", "bool", "float8", "text", "bytea", "uuid", "timestamptz", "interval", "jsonb")
_TYPES = "select " + ", ".join(f"null::pg_catalog.{one}[]" for one in _ARRAYS)


async def connect(
    dsn: str, *, timeout: float = TIMEOUT, caches: bool = False, for_users: bool = False, **options: Any
) -> Any:
    """A connection of asyncpg; if the DSN has several hosts, to the first that fits.

    caches: prepare statements and keep them. Behind a pooler the session that has them serves others next.
    for_users: leave the session's settings as users expect them.
    """
    if not caches:
        options["statement_cache_size"] = 0
    hosts = hosts_of(dsn)
    options["server_settings"] = _application_name(dsn) | options.get("server_settings", {})
    if len(hosts) == 1:
        conn = await asyncpg.connect(dsn, timeout=timeout, **options)
    else:
        async with asyncio.timeout(timeout):
            conn = await _first_that_fits(hosts, options)
    _enable_keepalive(conn)
    try:
        if for_users:
            await _learn_types(conn, timeout)
        else:
            await _prepare_session(conn, timeout)
            if is_pooled(conn) and not caches:  # a connection that keeps statements is not used behind a pooler
                await _learn_types(conn, timeout)
    except BaseException:
        conn.terminate()
        raise
    return conn


def _application_name(dsn: str) -> dict[str, str]:
    """The application_name for pg_stat_activity and the server's log, unless the DSN has one."""
    is_given = "application_name" in parse_qs(urlsplit(dsn).query, keep_blank_values=True)
    return {} if is_given else {"application_name": os.environ.get("PGAPPNAME") or PROGRAM.get()}


async def _prepare_session(conn: Any, timeout: float) -> None:
    """Detect a pooler by the pid that it makes up. Without one, set what the session needs."""
    asked = await conn.prepare(_PREPARE_SESSION, name="", timeout=timeout)  # an unnamed statement is not kept
    found = await asked.fetchrow(conn.get_server_pid(), timeout=timeout)
    if found["pid"] != conn.get_server_pid():
        _pooled[conn] = found["isolation"]


async def _learn_types(conn: Any, timeout: float) -> None:
    """Let the driver look up the types that it will need, while the search path is pinned: it looks them up by that."""
    await conn.execute(f"begin; {PIN}", timeout=timeout)
    await conn.prepare(_TYPES, name="", timeout=timeout)
    await conn.execute("rollback", timeout=timeout)


def is_pooled(conn: Any) -> bool:
    """Whether a connection of `connect` goes through a connection pooler."""
    return conn in _pooled


def needs_transaction(conn: Any) -> bool:
    """Whether a statement needs a transaction around it to run in READ COMMITTED, as our statements must."""
    return _pooled.get(conn, "read committed") != "read committed"


def origin_of(conn: Any) -> str:
    """The DSN of the host that a connection goes to; empty if there is only one host."""
    return _origins.get(getattr(conn, "_con", conn), "")  # unwrap the proxy of asyncpg's pool


async def is_deposed(origin: str, dsn: str) -> bool:
    """Whether a host of a DSN refuses connections while another one is a primary that accepts them."""
    with suppress(*_REFUSED):
        (await _probe(origin)).terminate()
        return False
    for other in hosts_of(dsn):
        with suppress(*_REFUSED):
            probe = await _probe(other) if other != origin else None
            if probe is not None:
                try:
                    return not await _is_standby(probe)
                finally:
                    probe.terminate()
    return False


async def _probe(dsn: str) -> Any:
    return await asyncpg.connect(dsn, timeout=TIMEOUT, server_settings=_application_name(dsn))


async def _is_standby(conn: Any) -> bool:
    asked = await conn.prepare("select pg_catalog.pg_is_in_recovery()", name="", timeout=TIMEOUT)
    return bool(await asked.fetchval(timeout=TIMEOUT))


_REFUSED = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


async def _first_that_fits(dsns: Sequence[str], options: dict[str, Any]) -> Any:
    """Try hosts in order: the next when one has failed, or beside one that has not answered for a while."""
    pending: set[asyncio.Task[Any]] = set()
    errors: list[BaseException] = []
    chosen = None
    try:
        for dsn in dsns:
            pending.add(asyncio.create_task(_connect_to(dsn, options), name="postbus-connect"))
            is_last = dsn is dsns[-1]
            while pending and chosen is None:
                wait = None if is_last else _NEXT_AFTER
                done, _ = await asyncio.wait(pending, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                failed = [task for task in done if task.exception() is not None]
                errors += [error for task in failed if (error := task.exception())]
                pending.difference_update(failed)
                chosen = next((task for task in done if task not in failed), None)
                if not is_last:
                    break
            if chosen is not None:
                pending.discard(chosen)
                return chosen.result()
    finally:
        await _drop(pending)
    raise _most_telling(errors)


async def _connect_to(dsn: str, options: dict[str, Any]) -> Any:
    conn: Any = await asyncpg.connect(dsn, timeout=TIMEOUT, **options)
    _origins[conn] = dsn
    return conn


async def _drop(attempts: set[asyncio.Task[Any]]) -> None:
    for attempt in attempts:
        attempt.cancel()
    for made in await asyncio.gather(*attempts, return_exceptions=True):
        if not isinstance(made, BaseException):
            made.terminate()


def _most_telling(errors: Sequence[BaseException]) -> BaseException:
    """The error to raise: an unavailable host first, for other hosts may not know the users of the primary."""
    away = (error for error in errors if isinstance(translate(error), DatabaseUnavailable))
    return next(away, errors[0])


def check_dsn(dsn: str) -> None:
    """Refuse a DSN that cannot be read, without quoting it."""
    problem = address_problem(dsn, ("postgresql", "postgres")) or _options_problem(dsn)
    if problem is not None:
        raise InvalidInput(f"bad DSN: {problem}", remedy=DSN_REMEDY)


def _options_problem(dsn: str) -> str | None:
    query = urlsplit(dsn).query
    with suppress(ValueError):
        given = parse_qs(query, keep_blank_values=True, strict_parsing=True) if query else {}
        ports = given.get("port", [""])[-1].split(",")
        return None if all(map(is_port, ports)) else "its port is not a number from 1 to 65535"
    return "its options cannot be read: they look like ?sslmode=require&application_name=shop"


def hosts_of(dsn: str) -> list[str]:
    """One DSN for each host of a DSN."""
    check_dsn(dsn)
    address = urlsplit(dsn)
    options = parse_qsl(address.query, keep_blank_values=True)
    given = dict(options)
    user, at, hosts = address.netloc.rpartition("@")
    if "," in hosts:
        return [urlunsplit(address._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]
    if "," not in given.get("host", ""):
        return [dsn]
    names = given["host"].split(",")
    ports = given["port"].split(",") if "port" in given else [""] * len(names)
    ports = ports * len(names) if len(ports) == 1 else ports
    kept = [option for option in options if option[0] not in ("host", "port")]
    each = [
        [*kept, ("host", host), *([("port", port)] if port else [])] for host, port in zip(names, ports, strict=True)
    ]
    before = dsn.partition("?")[0]
    return [f"{before}?{urlencode(one, quote_via=quote, safe='/')}" for one in each]


def _enable_keepalive(conn: Any) -> None:
    sock = conn._transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
