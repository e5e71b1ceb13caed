"""An order service: a message exists if and only if its order does.

    python examples/order_service.py

Uses the database of POSTBUS_DSN, or an embedded PostgreSQL.
"""

import asyncio
from dataclasses import dataclass

import asyncpg

from postbus import Bus

bus = Bus.open(migrate=True)


@dataclass
class OrderPlaced:
    order_id: int
    customer: str


async def place_order(conn: asyncpg.Connection, customer: str) -> None:
    """Write the order and publish the message, both or neither."""
    async with conn.transaction():
        order_id = await conn.fetchval("insert into shop_order (customer) values ($1) returning id", customer)
        await bus.publish(conn, "orders.placed", OrderPlaced(order_id, customer))
        if customer == "nobody":
            raise ValueError("nobody cannot order")  # rolls back the order, and its message


@bus.subscribe("orders.placed", concurrency=4)
async def confirm(order: OrderPlaced) -> None:
    print(f"thank you for order {order.order_id}, {order.customer}")
    if order.customer == "eve":
        bus.stop()  # a real service runs until it gets a SIGTERM


async def main() -> None:
    async with bus:
        conn = await asyncpg.connect(bus.dsn)
        await conn.execute("create table if not exists shop_order (id serial primary key, customer text)")
        for customer in ("ada", "nobody", "eve"):
            try:
                await place_order(conn, customer)
            except ValueError as error:
                print(f"rolled back: {error}")
        await conn.close()
        await bus.run()


if __name__ == "__main__":
    asyncio.run(main())
