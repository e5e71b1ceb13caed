"""The order service: publishes in the transactions that write its orders."""

from __future__ import annotations

import asyncio
import random

from postbus._runtime.loop import Backoff, pause
from postbus.bus import Bus
from postbus.cli.demo.shop import EVENTS, ORDERS, Order, OrderEvent
from postbus.cli.demo.tally import Tally
from postbus.errors import CommitUnknown, DatabaseUnavailable

_PER_SECOND = 30
_CUSTOMERS = ("ada", "ben", "cleo", "dan", "eve", "finn", "gia", "hugo", "ines", "jon", "kim", "leo")


class OutOfStock(Exception):
    """The service notices this late: after the message was published, but before the commit."""


class OrderService:
    """Takes orders until it is told to stop."""

    def __init__(self, bus: Bus, tally: Tally) -> None:
        self._bus = bus
        self._tally = tally

    async def run(self, stop: asyncio.Event) -> None:
        backoff = Backoff()
        while not stop.is_set():
            try:
                await self.take_order()
                wait = random.expovariate(_PER_SECOND)
                backoff.reset()
            except (DatabaseUnavailable, CommitUnknown) as error:
                self._tally.tell("order service", f"waits: {error.message}")
                wait = backoff.next()
            await pause(wait, stop)

    async def take_order(self) -> None:
        """Write an order and publish it, both or neither. Now and then something goes wrong."""
        chance = random.random()
        if chance < 1 / 200:
            await self._bus.send(ORDERS, "2 pounds of tea, please. Sent from my typewriter")
            self._tally.published[ORDERS] += 1
            return
        cents = -1 if chance < 1 / 80 else random.randint(500, 20_000)
        try:
            await self._place(random.choice(_CUSTOMERS), cents, is_sold_out=random.random() < 1 / 30)
        except OutOfStock as error:
            self._tally.rolled_back += 1
            self._tally.tell("order service", str(error))
        else:
            self._tally.committed += 1
            self._tally.published.update((ORDERS, EVENTS))

    async def _place(self, customer: str, cents: int, *, is_sold_out: bool) -> None:
        async with self._bus.transaction() as conn:
            order_id = await conn.fetchval(
                "insert into postbus_demo.demo_orders (customer, cents) values ($1, $2) returning id",
                customer,
                cents,
            )
            order = Order(order_id, customer, cents)
            await self._bus.publish(conn, ORDERS, order, key=customer)
            await self._bus.publish(conn, EVENTS, OrderEvent("placed", order), key=customer)
            if is_sold_out:
                raise OutOfStock(f"order {order_id} rolled back, and its message with it")
