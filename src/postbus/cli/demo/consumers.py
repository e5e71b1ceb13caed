"""The shop's consumers: a program of its own, of which the demo runs several processes.

It reports on stdout, one JSON object per line, and ends when its stdin ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from postbus._runtime.event_loop import run
from postbus.bus import Bus
from postbus.cli.demo.shop import ANALYTICS, EMAILS, EVENTS, FRAUD, ORDERS, PAYMENTS, SALES, Order, OrderEvent
from postbus.message import DeadLetter, Message, Outgoing
from postbus.middleware import Middleware
from postbus.start import Start

_REPORT_EVERY = 0.25
_DRAIN_WITHIN = 8.0
_KEEPS_EVENTS = (
    "message.retried",
    "message.dead",
    "lease.expired",
    "lease.lost",
    "lanes.lost",
    "worker.started",
    "database.away",
)
_PR_SET_PDEATHSIG = 1


class CardRefused(Exception):
    """The bank is slow today; it may work next time."""


class ScoreMissing(Exception):
    """The service that scores orders is overloaded; it may answer next time."""


def subscribe_all(bus: Bus, report: DemoReporter) -> None:
    """Register the handlers of the shop."""
    subscribe_queues(bus, report)
    subscribe_groups(bus)


def subscribe_queues(bus: Bus, report: DemoReporter) -> None:
    """Each message goes to one of these."""

    @bus.subscribe(ORDERS, concurrency=8, transactional=True)
    async def accept(order: Order, message: Message, conn: Any) -> None:
        accepted = await conn.execute(
            "update postbus_demo.demo_orders set state = 'accepted' where id = $1 and state = 'placed'",
            order.id,
        )
        if accepted == "UPDATE 0":
            report.ghosts += 1  # a message of an order that was rolled back, or one that came twice
        await bus.publish(conn, PAYMENTS, order, key=order.customer)

    @bus.subscribe(PAYMENTS, concurrency=8, transactional=True)
    async def charge(order: Order, message: Message, conn: Any) -> DeadLetter | None:
        if order.cents < 0:
            return DeadLetter(reason=f"order {order.id} has a negative amount")
        await asyncio.sleep(random.uniform(0.005, 0.03))
        if random.random() < 0.08:
            raise CardRefused(f"the bank of {order.customer} does not answer")
        await conn.execute("update postbus_demo.demo_orders set state = 'paid' where id = $1", order.id)
        await bus.publish(conn, EMAILS, order, delay=random.uniform(1, 4))
        await bus.publish(conn, EVENTS, OrderEvent("paid", order), key=order.customer)
        return None

    @bus.subscribe(EMAILS, concurrency=16)
    async def send_mail(order: Order) -> DeadLetter | None:
        await asyncio.sleep(random.uniform(0.01, 0.05))
        if order.id % 101 == 0:
            return DeadLetter(reason=f"{order.customer}@example.com does not exist")
        return None


def subscribe_groups(bus: Bus) -> None:
    """Each message goes to all of these."""

    @bus.subscribe(EVENTS, group=ANALYTICS, start=Start.BEGINNING, batch=100)
    async def chart(events: list[OrderEvent]) -> None:
        await asyncio.sleep(0.02)

    @bus.subscribe(EVENTS, group=FRAUD, start=Start.BEGINNING, concurrency=8)
    async def score(event: OrderEvent) -> None:
        await asyncio.sleep(random.uniform(0.01, 0.1))
        if random.random() < 0.01:
            raise ScoreMissing(f"no score for order {event.order.id}")

    @bus.subscribe(EVENTS, group=SALES, start=Start.BEGINNING, transactional=True)
    async def book(event: OrderEvent, message: Message, conn: Any) -> None:
        if event.kind == "paid":
            await conn.execute(
                "insert into postbus_demo.demo_sales as known (customer, paid, cents) values ($1, 1, $2) "
                "on conflict (customer) do update set paid = known.paid + 1, cents = known.cents + excluded.cents",
                event.order.customer,
                event.order.cents,
            )


class DemoReporter(Middleware, logging.Handler):
    """Counts what is published and handled, and passes log events on."""

    def __init__(self) -> None:
        super().__init__()
        self.ghosts = 0
        self._published: Counter[str] = Counter()
        self._handled: Counter[str] = Counter()

    @contextmanager
    def publishing(self, topic: str, messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
        yield messages
        self._published[topic] += len(messages)

    async def handling(self, messages: Sequence[Message], call_next: Callable[[], Awaitable[Any]]) -> Any:
        outcome = await call_next()
        if outcome is None:
            self._handled[messages[0].topic] += len(messages)
        return outcome

    def emit(self, record: logging.LogRecord) -> None:
        name = getattr(record, "event", None)
        if name in _KEEPS_EVENTS:
            _write({"event": name, "fields": getattr(record, "fields", {})})

    async def run(self) -> None:
        """Write the counts at intervals."""
        while True:
            await asyncio.sleep(_REPORT_EVERY)
            self.write_counts()

    def write_counts(self) -> None:
        if self._published or self._handled:
            _write({"published": self._published, "handled": self._handled, "ghosts": self.ghosts})
            self._published.clear()
            self._handled.clear()
            self.ghosts = 0


def _write(value: dict[str, Any]) -> None:
    print(json.dumps(value, default=str), flush=True)


async def consume(name: str) -> bool:
    """Consume until stdin ends. Returns whether everything that had begun was finished."""
    report = DemoReporter()
    logging.getLogger("postbus").addHandler(report)
    logging.getLogger("postbus").setLevel(logging.INFO)
    async with Bus.open() as bus:
        bus.use(report)
        subscribe_all(bus, report)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.remove_reader(sys.stdin.fileno())
            bus.stop()
            # If the database has ended before us, draining would never end.
            loop.call_later(_DRAIN_WITHIN, os._exit, 1)

        loop.add_reader(sys.stdin.fileno(), stop)
        reporting = asyncio.create_task(report.run())
        try:
            return await bus.run(name=name)
        finally:
            reporting.cancel()
            report.write_counts()


def tie_to(parent: int) -> None:
    """Let the kernel end this process when its parent is killed. Without Linux, the end of stdin does that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it died just before
        os._exit(1)


def main() -> None:
    name, parent = sys.argv[1:]
    tie_to(int(parent))
    try:
        sys.exit(0 if run(consume(name)) else 1)
    except BrokenPipeError:
        os._exit(1)  # the parent is gone


if __name__ == "__main__":
    main()
