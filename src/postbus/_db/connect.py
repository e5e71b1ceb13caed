"""Connecting: to a server, or to whichever of several is the primary.

With several hosts, asyncpg tries one after the other within one time limit: a host that is dead and silent uses all
of it up, and one that only breaks connections is taken for the answer. Here each host has its chance.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from postbus._db.addresses import is_port, why_no_address
from postbus._db.error_map import DSN_REMEDY, translate
from postbus._db.search_path import PIN
from postbus.errors import DatabaseUnavailable, InvalidInput

TIMEOUT = 10.0  # seconds
PROGRAM = ContextVar("program", default="postbus")
"""What our connections are called: the application_name, where the DSN has none. Commands set their own name."""
_NEXT_AFTER = 1.0  # seconds that a host has for itself, before the next one is tried beside it

# A peer that is gone is noticed after half a minute; by default it takes a quarter of an hour, or hours.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}

_origins: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_pooled: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Connections that go through a pooler, with the isolation level that their transactions have by default."""

# A server, database or role may limit how long a session idles or a statement takes. Such limits are meant for
# programs that misbehave; a worker idles between messages and waits in line for locks. On a connection that is ours
# alone they are switched off for the session. Behind a pooler the session is shared, so nothing is set there; the
# transactions in `commit.py` set what they need for themselves. `transaction_timeout` came with PostgreSQL 17.
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
# The search path is pinned for the session, so that no statement of ours means an object that somebody made elsewhere.
# This one runs before that, and so has each name qualified; behind a pooler, all statements outside a transaction have.
_MAKE_OURS = f"""
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
    """A connection of asyncpg. Of several hosts, to the first one that fits.

    caches: whether it prepares statements and keeps them. Behind a connection pooler they belong to somebody else the
        next moment.
    for_users: leave the session's settings as users know them.
    """
    if not caches:
        options["statement_cache_size"] = 0
    hosts = one_by_one(dsn)
    options["server_settings"] = _named(dsn) | options.get("server_settings", {})
    if len(hosts) == 1:
        conn = await asyncpg.connect(dsn, timeout=timeout, **options)
    else:
        async with asyncio.timeout(timeout):
            conn = await _first_that_fits(hosts, options)
    _notice_when_gone(conn)
    try:
        if for_users:
            await _learn_types(conn, timeout)
        else:
            await _make_ours(conn, timeout)
            if is_pooled(conn) and not caches:  # one that keeps statements is not used behind a pooler
                await _learn_types(conn, timeout)
    except BaseException:
        conn.terminate()
        raise
    return conn


def _named(dsn: str) -> dict[str, str]:
    """What tells our sessions from others, in pg_stat_activity and in the server's log, unless the DSN has a name."""
    is_given = "application_name" in parse_qs(urlsplit(dsn).query, keep_blank_values=True)
    return {} if is_given else {"application_name": os.environ.get("PGAPPNAME") or PROGRAM.get()}


async def _make_ours(conn: Any, timeout: float) -> None:
    """Learn whether a pooler is before the server: it makes up a pid. If not, set what our session needs."""
    asked = await conn.prepare(_MAKE_OURS, name="", timeout=timeout)  # without a name it does not outlive the statement
    told = await asked.fetchrow(conn.get_server_pid(), timeout=timeout)
    if told["pid"] != conn.get_server_pid():
        _pooled[conn] = told["isolation"]


async def _learn_types(conn: Any, timeout: float) -> None:
    """Let the driver look up the types that it will need: it does so by the search path, which is pinned only now."""
    await conn.execute(f"begin; {PIN}", timeout=timeout)
    await conn.prepare(_TYPES, name="", timeout=timeout)
    await conn.execute("rollback", timeout=timeout)


def process_name(name: str | None = None) -> str:
    """What this process is called in the database: another one each time.

    One that is started again under the same name is not the one before: what that one held is not its own.
    """
    return f"{name or f'{socket.gethostname()}:{os.getpid()}'}:{secrets.token_hex(3)}"


SECRET = uuid.uuid4()
"""Known to this process and the database alone: it proves who speaks for a process of this one's names."""


def given_name(process_name: str) -> str:
    """The same each time that it is started under that name."""
    return process_name.rpartition(":")[0] or process_name


def is_pooled(conn: Any) -> bool:
    """Whether there is a connection pooler before the server, of a connection that `connect` made."""
    return conn in _pooled


def needs_transaction(conn: Any) -> bool:
    """Whether a statement needs a transaction around it to be READ COMMITTED, which ours rely on."""
    return _pooled.get(conn, "read committed") != "read committed"


def origin_of(conn: Any) -> str:
    """Which of several hosts a connection goes to, as a DSN. Nothing where there is only one."""
    return _origins.get(getattr(conn, "_con", conn), "")  # within a connection of asyncpg's pool is ours


async def is_deposed(origin: str, dsn: str) -> bool:
    """Whether a host of a DSN takes no connections, while another one is a primary that does."""
    with suppress(*_REFUSED):
        (await _probe(origin)).terminate()
        return False
    for other in one_by_one(dsn):
        with suppress(*_REFUSED):
            probe = await _probe(other) if other != origin else None
            if probe is not None:
                try:
                    return not await _is_standby(probe)
                finally:
                    probe.terminate()
    return False


async def _probe(dsn: str) -> Any:
    return await asyncpg.connect(dsn, timeout=TIMEOUT, server_settings=_named(dsn))


async def _is_standby(conn: Any) -> bool:
    asked = await conn.prepare("select pg_catalog.pg_is_in_recovery()", name="", timeout=TIMEOUT)
    return bool(await asked.fetchval(timeout=TIMEOUT))


_REFUSED = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


async def _first_that_fits(dsns: Sequence[str], options: dict[str, Any]) -> Any:
    """Tries them in order: the next one when one has failed, or beside one that does not answer."""
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
    raise _telling(errors)


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


def _telling(errors: Sequence[BaseException]) -> BaseException:
    """That the primary is away passes; what another host says of users and databases may not be true of it."""
    passing = (error for error in errors if isinstance(translate(error), DatabaseUnavailable))
    return next(passing, errors[0])


def check_dsn(dsn: str) -> None:
    """Refuse a DSN that cannot be read, without a word of what it says."""
    problem = why_no_address(dsn, ("postgresql", "postgres")) or _why_no_options(dsn)
    if problem is not None:
        raise InvalidInput(f"bad DSN: {problem}", remedy=DSN_REMEDY)


def _why_no_options(dsn: str) -> str | None:
    query = urlsplit(dsn).query
    with suppress(ValueError):
        given = parse_qs(query, keep_blank_values=True, strict_parsing=True) if query else {}
        ports = given.get("port", [""])[-1].split(",")
        return None if all(map(is_port, ports)) else "a port of it is not a number from 1 to 65535"
    return "its options cannot be read: they look like ?sslmode=require&application_name=shop"


def one_by_one(dsn: str) -> list[str]:
    """A DSN for each host of a DSN."""
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


def _notice_when_gone(conn: Any) -> None:
    sock = conn._transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
