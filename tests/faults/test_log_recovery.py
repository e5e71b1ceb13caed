"""The log continues where it was after a crash of the server, and after a failover."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from faults.servers.postgres import Server
from faults.servers.run import Servers
from support.log_sql import create_topic, cursor_of, partitions_of, read_all, rotate, subscribe
from support.queue_sql import publish


async def _connect(server: Server) -> Any:
    return await asyncpg.connect(server.dsn())


async def _in_the_second_partition(conn: Any) -> tuple[int, int]:
    """Write to a topic in a partition that began after a checkpoint. Returns its storage and a group."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one")
    await conn.execute("checkpoint")
    assert await rotate(conn, storage) == 2
    await publish(conn, "two")
    return storage, group


@pytest.mark.parametrize("fails_over", [False, True])
async def test_publishers_continue_in_the_same_partition(servers: Servers, fails_over: bool) -> None:
    """No sweep is needed first. A plain sequence would continue 32 partitions further, which do not exist."""
    server = await servers.new()
    await server.start()
    standby = await servers.standby_of(server) if fails_over else None
    conn = await _connect(server)
    storage, group = await _in_the_second_partition(conn)
    await server.kill()
    if standby is None:
        await server.start()
    else:
        await standby.promote()

    conn = await _connect(standby or server)
    await publish(conn, "three")
    assert await partitions_of(conn, storage) == [1, 2]
    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["one", "two", "three"]
    await conn.close()
    for one in filter(None, (standby, server)):
        await one.remove()
