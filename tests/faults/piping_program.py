"""A program that pops, transforms and publishes in one transaction, for the test that kills it."""

from __future__ import annotations

import asyncio
import sys

from postbus import Bus


async def main(dsn: str, group: str | None) -> None:
    async with Bus.open(dsn) as bus:
        while True:
            async with bus.pop("in", group=group, batch=20, wait=5, lease=1, keep=True) as popped:
                if popped:
                    async with bus.transaction() as tx:
                        await popped.ack(tx)
                        await bus.publish_many(tx, "out", [2 * number for number in popped.payloads])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] or None))
