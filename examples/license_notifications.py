"""Licenses and their notifications: events are emitted in a transaction, and handled once.

    python examples/license_notifications.py

The service writes a license and emits what has happened to it, in one transaction. A consumer tells the admins of
licenses that wait for a review, and the store of the decision. One delivery fails and is repeated, and later all
messages are delivered again: there is one notification for each event all the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import asyncpg
import msgspec

from postbus import Bus, Message, Middleware, RetryPolicy, Start, TopicExists
from postbus.events import Registry
from postbus.inbox import Inbox

bus = Bus.open(migrate=True)
registry = Registry(title="Licensing")
inbox = Inbox(window="720h")


@registry.event("license_status_changed", topic="domain-events", aggregate="license")
class LicenseStatusChanged(msgspec.Struct, rename="camel"):
    license_id: int
    store_id: int
    status: Literal["pending", "verified", "rejected"]
    reason: str | None = None


# The service: the license and its event are committed together, or neither is.
async def upload(license_id: int, store_id: int) -> None:
    async with bus.transaction() as conn:
        await conn.execute("insert into license values ($1, $2, 'pending')", license_id, store_id)
        event = LicenseStatusChanged(license_id, store_id, "pending")
        await bus.emit(conn, event, aggregate_id=license_id)


async def decide(license_id: int, status: Literal["verified", "rejected"], reason: str | None = None) -> None:
    async with bus.transaction() as conn:
        store_id = await conn.fetchval(
            "update license set status = $2 where id = $1 returning store_id", license_id, status
        )
        event = LicenseStatusChanged(license_id, store_id, status, reason)
        await bus.emit(conn, event, aggregate_id=license_id)


# The consumer: the notification, the inbox record and the group's position commit together.
@bus.subscribe(
    "domain-events", group="compliance", start=Start.BEGINNING, transactional=True, retry=RetryPolicy(initial=0.05)
)
@inbox.idempotent("compliance")
async def notify(event: LicenseStatusChanged, message: Message, conn: asyncpg.Connection) -> None:
    if event.status == "pending":
        recipient, text = "admin", f"license {event.license_id} waits for a review"
    else:
        because = f": {event.reason}" if event.reason else ""
        recipient, text = f"store {event.store_id}", f"license {event.license_id} is {event.status}{because}"
    await conn.execute(
        "insert into notification (kind, recipient, text) values ('compliance', $1, $2)", recipient, text
    )
    if event.status == "verified" and message.attempt == 1:
        print("failing after the insert: it is undone, and the event comes again")
        raise ConnectionError("the mail server is away")


class Deliveries(Middleware):
    """Counts deliveries of events, successful or not."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Condition()

    async def handling(self, messages: Sequence[Message], call_next: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call_next()
        finally:
            async with self._changed:
                self._count += 1
                self._changed.notify_all()

    async def are(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._count >= count)


async def show() -> None:
    async with bus.transaction() as conn:
        for recipient, text in await conn.fetch("select recipient, text from notification order by id"):
            print(f"{recipient}: {text}")


async def main() -> None:
    deliveries = Deliveries()
    bus.use(deliveries)
    async with bus:
        with suppress(TopicExists):
            await bus.admin.create_topic("domain-events", semantics="PUB_SUB")
        async with bus.transaction() as conn:
            await conn.execute("drop table if exists license, notification")
            await conn.execute("create table license (id int primary key, store_id int, status text)")
            await conn.execute("create table notification (id serial, kind text, recipient text, text text)")
        await upload(1, store_id=7)
        await decide(1, "verified")
        await upload(2, store_id=8)
        await decide(2, "rejected", "the scan is not readable")
        running = asyncio.create_task(bus.run())
        await deliveries.are(5)  # four events, one of them twice
        await bus.admin.seek("domain-events", "compliance", Start.BEGINNING)
        await deliveries.are(9)
        print("all events were delivered again")
        bus.stop()
        await running
        await show()


if __name__ == "__main__":
    asyncio.run(main())
