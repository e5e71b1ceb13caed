"""Running webhooks: ordinary consumers of this process, which send messages to addresses over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from postbus._content.content_types import safe_content_type
from postbus._db.addresses import public_address
from postbus._db.store import Store
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff, pause
from postbus.bus import Bus
from postbus.errors import DatabaseUnavailable, PostbusError
from postbus.message import Message, Outcome, Release, Retry
from postbus.relay.reach import Reach
from postbus.relay.sink import Parcel
from postbus.relay.webhook import WebhookSink
from postbus.start import Start

_LOOK = 5.0  # seconds after which a change that another server made is noticed
_PATIENCE = 5.0  # seconds that requests may take to finish when something changes

Row = dict[str, Any]


class Webhook:
    """One webhook: a handler that POSTs."""

    def __init__(self, row: Row, reach: Reach) -> None:
        self.row = row
        self.sink = WebhookSink(
            secrets=[row["secret"]], timeout=row["timeout"], connections=row["concurrency"], reach=reach,
            tells_answers=False,  # else the creator of a webhook could read answers that only this server gets
        )  # fmt: skip

    async def post(self, message: Message) -> Outcome:
        """Send a message.

        If nobody listens, that counts as an attempt, so that other messages of the topic need not wait.
        """
        [outcome] = await self.sink.send([self._parcel(message)])
        return (
            Retry(error=f"nobody listens at {public_address(self.row['url'])}")
            if isinstance(outcome, Release)
            else outcome
        )

    def _parcel(self, message: Message) -> Parcel:
        fields = {
            "postbus-event-id": message.event_id,
            "postbus-topic": message.topic,
            "postbus-attempt": str(message.attempt),
            "postbus-published-at": message.published_at.isoformat(),
            "postbus-key": message.key,
            "postbus-correlation-id": message.correlation_id,
            # In one field, because their names may be invalid in HTTP, or have a meaning there.
            "postbus-headers": json.dumps(dict(message.headers)) if message.headers else None,
        }
        return Parcel(
            id=f"{message.event_id}:{self.row['name']}",
            target=self.row["url"],
            source="postbus",
            key=message.key,
            body=message.payload,
            content_type=safe_content_type(message.content_type),
            headers={name: value for name, value in fields.items() if value is not None},
            message=message,
        )


class WebhookRunner:
    """Runs the webhooks that are enabled, and notices when they change."""

    def __init__(self, dsn: str, store: Callable[[], Awaitable[Store]], reach: Reach) -> None:
        self._dsn = dsn
        self._reach = reach
        self._store = store
        self._look = asyncio.Event()
        self._asking: list[asyncio.Event] = []

    async def changed(self) -> None:
        """Apply a change. Returns when this process has applied it, or when a request takes too long to end."""
        followed = asyncio.Event()
        self._asking.append(followed)
        self._look.set()
        await pause(2 * _PATIENCE, followed)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, or the task is cancelled."""
        rows: list[Row] = []
        running: asyncio.Task[None] | None = None
        ending = asyncio.Event()
        backoff = Backoff()
        try:
            while not stop.is_set():
                # Clear before looking: a change that comes meanwhile must be looked at again.
                self._look.clear()
                asking, self._asking = self._asking, []
                wanted = await self._wanted(rows)
                if wanted != rows or (wanted and (running is None or running.done())):
                    await _end(running, ending)
                    rows, ending = wanted, asyncio.Event()
                    running = asyncio.create_task(self._consume(rows, ending), name="postbus-webhooks")
                for followed in asking:
                    followed.set()
                await pause(_LOOK if running is None or not running.done() else backoff.next(), stop, self._look)
        finally:
            await _end(running, ending)

    async def _wanted(self, rows: list[Row]) -> list[Row]:
        try:
            store = await self._store()
            found = await store.webhooks_to_run()
            semantics = await store.semantics() if found else {}
        except DatabaseUnavailable:
            return rows
        fitting: list[Row] = []
        for row in found:
            if (row["group_name"] is None) == (semantics.get(row["topic"], "QUEUE") == "QUEUE"):
                fitting.append(row)
            else:
                event(logging.WARNING, "webhook.unfit", webhook=row["name"], semantics=semantics.get(row["topic"]))
        return fitting

    async def _consume(self, rows: Sequence[Row], ending: asyncio.Event) -> None:
        """Run one consumer for all webhooks, until they change."""
        if not rows:
            return
        try:
            async with AsyncExitStack() as stack:
                bus = Bus(self._dsn)
                stack.push_async_callback(bus.close)
                for row in rows:
                    webhook = Webhook(row, self._reach)
                    await webhook.sink.open()
                    stack.push_async_callback(webhook.sink.close)
                    start = None if row["group_name"] is None else Start.NOW
                    bus.subscribe(
                        row["topic"], name=f"webhook {row['name']}", group=row["group_name"], start=start,
                        concurrency=row["concurrency"],
                    )(webhook.post)  # fmt: skip
                await _run_until(bus, ending)
        except PostbusError as error:
            event(logging.ERROR, "webhooks.failed", error=error)


async def _run_until(bus: Bus, ending: asyncio.Event) -> None:
    running = asyncio.create_task(bus.run(signals=False), name="postbus-webhook-consumer")
    told = asyncio.create_task(ending.wait(), name="postbus-webhook-end")
    try:
        await asyncio.wait((running, told), return_when=asyncio.FIRST_COMPLETED)
        bus.stop()
        await asyncio.wait((running,), timeout=_PATIENCE)
    finally:
        told.cancel()
        if not running.done():
            bus.stop()
        await running


async def _end(running: asyncio.Task[None] | None, ending: asyncio.Event) -> None:
    if running is not None:
        ending.set()
        await asyncio.shield(running)
