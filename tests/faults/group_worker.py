"""A member of a group in a process of its own, for the tests that kill and stop it: it records what it handles."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

from postbus import Bus, Message, RetryPolicy, Start


async def main(dsn: str, log: str, mode: str, name: str | None = None) -> None:
    with Path(log).open("a", buffering=1) as file:
        await run(Bus.open(dsn), file, mode, name)


async def run(bus: Bus, file: TextIO, mode: str, name: str | None) -> None:
    retry = RetryPolicy(initial=0.01, factor=1, maximum=0.01)

    if mode == "transactional":

        @bus.subscribe("t", group="g", start=Start.BEGINNING, concurrency=8, transactional=True, retry=retry)
        async def handle_in_transaction(n: int, message: Message, conn: Any) -> None:
            await conn.execute("insert into effect values ($1, $2)", n, os.getpid())
            if n % 50 == 3 and message.attempt == 1:
                raise ValueError("once more")
            file.write(f"{n}\n")

    elif mode == "deadly":

        @bus.subscribe("t", group="g", start=Start.BEGINNING, concurrency=4, retry=retry)
        async def handle_or_die(n: int) -> None:
            if n == 13:
                os._exit(1)
            file.write(f"{n}\n")

    elif mode == "freezing":
        own, has_frozen, may_go_on = (Path(f"{file.name}.{name}") for name in (os.getpid(), "frozen", "gate"))

        @bus.subscribe("t", group="g", start=Start.BEGINNING)
        async def handle_and_freeze(n: int) -> None:
            with own.open("a") as begun:
                begun.write(f"{n}\n")
            if n == 10 and not has_frozen.exists():
                has_frozen.touch()
                os.kill(os.getpid(), signal.SIGSTOP)
            while n == 20 and not may_go_on.exists():
                await asyncio.sleep(0.01)

    else:

        @bus.subscribe("t", group="g", start=Start.BEGINNING, concurrency=16, retry=retry)
        async def handle(n: int) -> None:
            await asyncio.sleep(0.0005)
            file.write(f"{n}\n")

    await bus.run(name=name)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
