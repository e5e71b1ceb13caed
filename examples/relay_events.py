"""An outbox: events are committed with an order, and relayed to a broker; here to one that prints them.

    python examples/relay_events.py

Uses the database of POSTBUS_DSN, or an embedded PostgreSQL. In a service of your own the sink is
NatsSink("nats://localhost:4222") or another of postbus.relay, and a process of its own runs it: postbus relay run.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import asyncpg

from postbus import Ack, Bus, Outcome, TopicExists
from postbus.relay import Parcel

bus = Bus.open(migrate=True)


class PrintingSink:
    """Everything a sink needs: open, close, and an outcome for each message."""

    keeps_order = True  # it handles messages of one key one after the other

    async def open(self) -> None:
        print("connected")

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        for one in parcels:
            print(f"{one.target}: {one.body.decode()} of order {one.key}, event {one.headers['event_id']}")
            if one.headers["event_type"] == "paid":
                bus.stop()  # a real relay runs until it gets a SIGTERM
        return [Ack() for _ in parcels]

    async def close(self) -> None:
        print("disconnected")


async def emit(conn: asyncpg.pool.PoolConnectionProxy, event_type: str, order: int, amount: int) -> None:
    """Publish an event of an order, in the transaction that changes the order."""
    headers = {"event-type": event_type, "aggregate-type": "order", "aggregate-id": str(order)}
    await bus.publish(conn, "shop.orders", {"amount": amount}, key=str(order), headers=headers)


async def main() -> None:
    async with bus:
        with suppress(TopicExists):
            await bus.admin.create_topic("shop.orders", semantics="PUB_SUB", retention="30 days")
        async with bus.transaction() as conn:
            await emit(conn, "placed", 7, 150)
        with suppress(ZeroDivisionError):
            async with bus.transaction() as conn:
                await emit(conn, "cancelled", 7, 150)
                print(1 / 0)  # the transaction is rolled back, and its event with it
        async with bus.transaction() as conn:
            await emit(conn, "paid", 7, 150)
        await bus.relay("shop.orders", PrintingSink(), target="orders.{event_type}")
        await bus.run()


if __name__ == "__main__":
    asyncio.run(main())
