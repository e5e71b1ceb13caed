"""The shop: its orders, its tables and its topics."""

from __future__ import annotations

import msgspec

from postbus.bus import Bus
from postbus.errors import InvalidInput
from postbus.options import TopicOptions

ORDERS, PAYMENTS, EMAILS, EVENTS = "demo.orders", "demo.payments", "demo.emails", "demo.events"
ANALYTICS, FRAUD, SALES = GROUPS = ("analytics", "fraud", "sales")
"""The groups of the topic EVENTS."""

TOPICS: dict[str, TopicOptions] = {
    # Short leases: messages of a killed worker come back soon.
    ORDERS: {"lease": 5},
    PAYMENTS: {"lease": 5, "ordered": True, "max_attempts": 4, "retry_initial": 0.5, "retry_max": 4},
    EMAILS: {"lease": 5},
    EVENTS: {
        "semantics": "PUB_SUB", "lanes": 4, "lease": 5, "retention": 3600, "zero_subscription_retention": 3600,
        "max_attempts": 4, "retry_initial": 0.5, "retry_max": 4,
    },
}  # fmt: skip

_TABLES = """
create schema if not exists postbus_demo;
create table if not exists postbus_demo.demo_orders (
    id        bigint generated always as identity primary key,
    customer  text not null,
    cents     integer not null,
    state     text not null default 'placed',
    placed_at timestamptz not null default now()
);
create table if not exists postbus_demo.demo_sales (
    customer text primary key,
    paid     integer not null,
    cents    bigint not null
);
"""


class Order(msgspec.Struct, frozen=True):
    """The payload in the queues of the shop."""

    id: int
    customer: str
    cents: int


class OrderEvent(msgspec.Struct, frozen=True):
    """An event of an order, for all groups."""

    kind: str
    order: Order


async def open_shop(bus: Bus) -> None:
    """Make the tables and the topics, unless a shop was here before."""
    existing = {topic.name for topic in await bus.admin.topics()}
    async with bus.transaction() as conn:
        is_ours = await conn.fetchval("select to_regnamespace('postbus_demo') is not null")
        if not is_ours and (taken := sorted(existing & TOPICS.keys())):
            raise InvalidInput(
                f"the database has topics with the demo's names: {', '.join(taken)}",
                remedy="run the demo in a database of its own, or without --dsn on the embedded server",
            )
        await conn.execute(_TABLES)
    for name, options in TOPICS.items():
        if name not in existing:
            await bus.admin.create_topic(name, **options)
