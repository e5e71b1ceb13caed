"""The log goes on where it was after a crash of the server, and after a failover."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from faults.servers.postgres import Server
from faults.servers.run import Servers
from support.log_sql import create_topic, cursor_of, leaves, read_all, rotate, subscribe
from support.queue_sql import publish


async def _connect(server: Server) -> Any:
    return await asyncpg.connect(server.dsn())


async def _in_the_second_leaf(conn: Any) -> tuple[int, int]:
    """A topic that is written to in a leaf that began after a checkpoint: its storage and a group."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one")
    await conn.execute("checkpoint")
    assert await rotate(conn, storage) == 2
    await publish(conn, "two")
    return storage, group


@pytest.mark.parametrize("fails_over", [False, True])
async def test_publishers_go_on_in_the_same_leaf(servers: Servers, fails_over: bool) -> None:
    """Nobody has to sweep before. A sequence would go on 32 leaves further, which are not there."""
    server = await servers.new()
    await server.start()
    standby = await servers.standby_of(server) if fails_over else None
    conn = await _connect(server)
    storage, group = await _in_the_second_leaf(conn)
    await server.kill()
    if standby is None:
        await server.start()
    else:
        await standby.promote()

    conn = await _connect(standby or server)
    await publish(conn, "three")
    assert await leaves(conn, storage) == [1, 2]
    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["one", "two", "three"]
    await conn.close()
    for one in filter(None, (standby, server)):
        await one.remove()
