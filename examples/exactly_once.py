"""A handler whose effect happens exactly once, though its message is delivered twice.

    python examples/exactly_once.py

The handler gets the connection in whose transaction its message is acked: what it writes there is
committed together with the ack, or not at all.
"""

import asyncio

import asyncpg

from postbus import Bus, Message, RetryPolicy

bus = Bus.open(migrate=True)


@bus.subscribe("transfers", transactional=True, retry=RetryPolicy(initial=0.05))
async def book(transfer: dict[str, int], message: Message, conn: asyncpg.Connection) -> None:
    await conn.execute("update account set balance = balance + $1", transfer["amount"])
    if message.attempt == 1:
        print("failing after the update: it is undone, and the message comes again")
        raise ConnectionError("the power went out")
    print("booked")
    bus.stop()


async def main() -> None:
    async with bus:
        async with bus.transaction() as conn:
            await conn.execute("drop table if exists account")
            await conn.execute("create table account as select 100 as balance")
            await bus.publish(conn, "transfers", {"amount": 50})
        await bus.run()
        async with bus.transaction() as conn:
            print("balance:", await conn.fetchval("select balance from account"))


if __name__ == "__main__":
    asyncio.run(main())
