"""Publish/subscribe: three groups, each of which gets every event of the shop, at its own pace.

    python examples/order_events.py

Uses the database of POSTBUS_DSN, or an embedded PostgreSQL.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import asyncpg

from postbus import Bus, Message, RetryPolicy, Start, TopicExists

bus = Bus.open(migrate=True)


@dataclass
class OrderEvent:
    kind: str
    order: int
    article: str


# One event at a time. The order is the key of the messages, so events of one order come one after the other.
@bus.subscribe("orders.events", group="email", start=Start.BEGINNING, concurrency=4, retry=RetryPolicy(initial=0.1))
async def send_mail(event: OrderEvent, message: Message) -> None:
    if event.order == 2 and message.attempt == 1:
        raise ConnectionError("the mail server is away")  # order 2 is tried again later; the others go on
    print(f"email: order {event.order} is {event.kind}")
    done("email", 1)


# Many at a time, for work that costs the same for one event and for a hundred.
@bus.subscribe("orders.events", group="analytics", start=Start.BEGINNING, batch=100)
async def count(events: list[OrderEvent]) -> None:
    done("analytics", len(events))


# Its writes commit together with the group's position: every event is booked, and none is booked twice.
@bus.subscribe(
    "orders.events",
    group="inventory",
    start=Start.BEGINNING,
    transactional=True,
    filter=lambda message: message.headers.get("kind") == "placed",
)
async def book(event: OrderEvent, message: Message, conn: asyncpg.Connection) -> None:
    await conn.execute("update stock set pieces = pieces - 1 where article = $1", event.article)
    done("inventory", 1)


ORDERS = {1: "tea", 2: "coffee", 3: "tea"}
EXPECTED = {"email": 6, "analytics": 6, "inventory": 3}
handled: Counter[str] = Counter()


def done(group: str, messages: int) -> None:
    handled[group] += messages
    if handled == EXPECTED:
        bus.stop()  # a real service runs until it gets a SIGTERM


async def publish() -> None:
    for kind in ("placed", "paid"):
        for order, article in ORDERS.items():
            async with bus.transaction() as conn:  # where the order itself would be written
                event = OrderEvent(kind, order, article)
                await bus.publish(conn, "orders.events", event, key=str(order), headers={"kind": kind})


async def main() -> None:
    async with bus:
        with suppress(TopicExists):
            await bus.admin.create_topic("orders.events", semantics="PUB_SUB")
        async with bus.transaction() as conn:
            await conn.execute("drop table if exists stock")
            await conn.execute("create table stock (article text, pieces int)")
            await conn.execute("insert into stock values ('tea', 10), ('coffee', 10)")
        await publish()
        await bus.run()
        async with bus.transaction() as conn:
            for article, pieces in await conn.fetch("select article, pieces from stock order by article"):
                print(f"inventory: {pieces} pieces of {article}")
        for group in await bus.admin.groups("orders.events"):
            print(f"{group.group_name}: {group.lag} before it")


if __name__ == "__main__":
    asyncio.run(main())
