"""A worker process for the tests that kill it: it records handled messages in a file and in a table."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import msgspec

from postbus import Bus, Message


class Order(msgspec.Struct):
    n: int


async def main(dsn: str, log: str, mode: str) -> None:
    with Path(log).open("a", buffering=1) as file:
        await run(Bus.open(dsn), file, mode)


async def run(bus: Bus, file: TextIO, mode: str) -> None:
    if mode == "transactional":

        @bus.subscribe("t", concurrency=8, transactional=True, lease="2s")
        async def handle_in_transaction(order: Order, message: Message, conn: Any) -> None:
            await conn.execute("insert into effect values ($1, $2)", order.n, os.getpid())
            file.write(f"{order.n}\n")

    else:

        @bus.subscribe("t", concurrency=200, lease="2s")
        async def handle(order: Order) -> None:
            await asyncio.sleep(0.001)
            file.write(f"{order.n}\n")

    await bus.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
