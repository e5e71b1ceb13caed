"""The bus: where a program publishes, subscribes and runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

import asyncpg

from postbus._content.names import check_topic_name
from postbus._content.outgoing import outgoing
from postbus._db import migrator
from postbus._db.actor import checked_actor
from postbus._db.connect import process_name
from postbus._db.database import connected
from postbus._db.store import Store
from postbus._drivers.base import AsyncConnection
from postbus._publish.publisher import Publisher
from postbus._pull.puller import Puller
from postbus._wakeup.waiters import Wakers
from postbus.admin import Admin
from postbus.catch_up import CatchUp
from postbus.errors import DuplicateHandler, InvalidHandler, InvalidOption, PostbusError
from postbus.events import emission
from postbus.group import Filter, Group
from postbus.message import PublishOptions
from postbus.middleware import Middleware
from postbus.options import Duration, as_timedelta
from postbus.pull import Pop, PopOptions, pop
from postbus.relay import Relay, RelayOptions, Sink
from postbus.relay.plan import IN_ORDER, plan
from postbus.scope import Heartbeat, Scope
from postbus.start import Default, Start
from postbus.subscription import HandlerOptions, Subscription, maker
from postbus.worker import Worker, workers_of

H = TypeVar("H", bound=Callable[..., Any])


class Bus:
    """Publishes to, and consumes from, one database.

    Made by `Bus.open()`. Connects when first needed; `async with` or `close()` ends it.
    """

    def __init__(
        self,
        dsn: str,
        *,
        server: Any = None,
        migrate: bool = False,
        pool_size: int = 10,
        default_mode: str | None = None,
        actor: str | None = None,
    ) -> None:
        self.dsn = dsn
        self._actor = "" if actor is None else checked_actor(actor)
        self.default = Default(default_mode)
        self._server = server
        self._migrate = migrate
        self._pool_size = pool_size
        self._subscriptions: dict[str, Subscription] = {}
        self._groups: dict[tuple[str, str], tuple[Group, Start | None]] = {}
        self._middleware: list[Middleware] = []
        self._wakers = Wakers()
        self._publisher = Publisher(dsn, self._wakers, self._middleware)
        self._connecting: asyncio.Lock | None = None
        self._store: Store | None = None
        self._puller: Puller | None = None
        self._worker: Worker | None = None
        self._relays: list[Relay] = []
        self.admin = Admin(self.connect, self.default, self._halt)

    @classmethod
    def open(
        cls,
        dsn: str | None = None,
        *,
        data_dir: str | Path | None = None,
        version: int = 18,
        migrate: bool | None = None,
        pool_size: int = 10,
        default_mode: str | None = None,
        actor: str | None = None,
    ) -> Self:
        """Open a bus on the server of `dsn`, of POSTBUS_DSN, or on an embedded PostgreSQL.

        An embedded server keeps its data in `data_dir`, and is migrated by itself. Other databases are
        migrated only if `migrate` says so. `default_mode`, or POSTBUS_DEFAULT_SUBSCRIPTION_MODE, is where groups start
        that do not say so: new or all. `actor` is who the audit log shows beside the database user.
        """
        dsn = dsn or os.environ.get("POSTBUS_DSN") or None
        if dsn is not None:
            return cls(dsn, migrate=bool(migrate), pool_size=pool_size, default_mode=default_mode, actor=actor)
        from postbus.embedded import EmbeddedPostgres

        server = EmbeddedPostgres.start(data_dir, version=version)
        is_migrated = migrate is not False
        return cls(
            server.dsn(),
            server=server,
            migrate=is_migrated,
            pool_size=pool_size,
            default_mode=default_mode,
            actor=actor,
        )

    # publishing

    @overload
    def publish(
        self, conn: AsyncConnection, topic: str, payload: Any, **options: Unpack[PublishOptions]
    ) -> Awaitable[int]: ...

    @overload
    def publish(self, conn: object, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> int: ...

    def publish(self, conn: Any, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> Any:
        """Publish a message in the transaction of `conn`: it exists exactly if that commits.

        Returns the message's id; on an async connection, an awaitable of it.
        """
        return self._publisher.publish(conn, topic, outgoing(payload, **options))

    @overload
    def publish_many(  # type: ignore[overload-overlap]  # an object that is an AsyncConnection is meant as one
        self, conn: AsyncConnection, topic: str, messages: Iterable[Any]
    ) -> Awaitable[list[int]]: ...

    @overload
    def publish_many(self, conn: object, topic: str, messages: Iterable[Any]) -> list[int]: ...

    def publish_many(self, conn: Any, topic: str, messages: Iterable[Any]) -> Any:
        """Publish payloads, or `Outgoing` messages, in the transaction of `conn`. Returns their ids."""
        return self._publisher.publish_many(conn, topic, messages)

    @overload
    def emit(
        self,
        conn: AsyncConnection,
        event: Any,
        *,
        aggregate_id: str | int | UUID,
        **options: Unpack[PublishOptions],
    ) -> Awaitable[int]: ...

    @overload
    def emit(
        self, conn: object, event: Any, *, aggregate_id: str | int | UUID, **options: Unpack[PublishOptions]
    ) -> int: ...

    def emit(self, conn: Any, event: Any, *, aggregate_id: str | int | UUID, **options: Unpack[PublishOptions]) -> Any:
        """Publish an event of a `Registry` to its topic, in the transaction of `conn`; checked before it is written.

        Its key is the aggregate's id, so that those of one aggregate keep their order. Returns what `publish` does.
        """
        topic, message = emission(event, aggregate_id=aggregate_id, **options)
        return self.publish(conn, topic, message)

    async def send(self, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> int:
        """Publish without a transaction of one's own; returns the id once the message is committed.

        Concurrent calls share a commit, so this is fast when called many times at once.
        """
        message = outgoing(payload, **options)
        await self.connect()
        return await self._publisher.send(topic, message)

    async def send_many(self, topic: str, messages: Iterable[Any]) -> list[int]:
        """Publish payloads, or `Outgoing` messages, without a transaction of one's own: all of them, or none.

        Returns their ids once they are committed.
        """
        await self.connect()
        return await self._publisher.send_many(topic, messages)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        """A transaction on a connection of the bus. Its COMMIT is not interrupted by cancellation.

        It is ended by the end of the block alone: TransactionEnded if a statement in it has ended it, also if another
        one has begun, which is rolled back.
        """
        store = await self.connect()
        assert self._puller is not None
        with self._puller.settlements.noting() as note:
            async with store.transaction() as conn:
                note(conn)
                yield conn

    # consuming

    def pop(self, topic: str | None = None, **options: Unpack[PopOptions]) -> Pop:
        """Take messages of a QUEUE, or for a group: `await` it, or use it as `async with`.

        A group's `topic` may be a pattern, or be left out for a `namespace` or a `task`; its first pop subscribes it.
        The options are `group`, `batch`, `wait`, `lease`, `key`, `namespace`, `task`, `start`, `mode`, `look_back`,
        `member`, `auto_ack` and `keep`: see `PopOptions`.
        """
        return pop(self._connected_puller, topic, options, self.default)

    async def heartbeat(
        self,
        topic: str | None = None,
        *,
        group: str,
        namespace: str | None = None,
        task: str | None = None,
        last: bool = False,
        member: str | None = None,
    ) -> list[Heartbeat]:
        """Keep a group alive whose consumer will not pop, settle or extend for a while. Revives a DEAD group.

        `last` says that this consumer, called `member`, stops as planned: its group is shown as stopped, until another
        sign of life. `close()` says so by itself for groups that this bus has popped for.
        """
        store = await self.connect()
        scope = Scope.of(topic, namespace=namespace, task=task)
        return await store.send_heartbeat(group, scope, stopped_by=(member or process_name()) if last else None)

    async def _connected_puller(self) -> Puller:
        await self.connect()
        assert self._puller is not None
        return self._puller

    def subscribe(
        self,
        topic: str | None = None,
        *,
        name: str | None = None,
        lease: Duration | None = None,
        group: str | None = None,
        key: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        start: Start | str | datetime | int | None = None,
        mode: str | None = None,
        look_back: Duration | None = None,
        filter: Filter | None = None,
        on_failure: str = "block",
        catch_up: CatchUp | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[H], H]:
        """Register a handler for a topic: of a QUEUE, or with `group` of a PUB_SUB topic, or of all topics in a scope.

        A group has a topic, one `key` of it, all topics of a `namespace` or of a `task`, or those whose names fit a
        pattern (orders.* for one more word, orders.# for any number), also those that are created later. `start` is
        where it begins when it is new; `mode` says the same, and is recorded: new (from now on, and what was published
        `look_back` before, 4 seconds), all, or timestamp with a time as `start`.

        The options are `concurrency`, `batch`, `transactional`, `retry`, `timeout` and `poll`. They and `lease` are
        explained at `Subscription`, those of groups at `bus.group()`.
        """
        if group is None:
            if namespace is not None or task is not None:
                raise InvalidOption("namespaces and tasks are for groups", remedy="give group=…, or a topic")
            check_topic_name(topic or "")
        scope = Scope.of(topic, key=key, namespace=namespace, task=task)
        make = maker(str(scope), lease=lease, **options)
        given_start = self.default.start_of(
            start, mode, look_back, is_recorded=scope.is_recorded, is_wide=scope.is_wide
        )

        def register(handler: H) -> H:
            if not callable(handler):
                raise InvalidHandler(f"{handler!r} is not a function", remedy="put the decorator above a function")
            own_name = name or str(getattr(handler, "__qualname__", type(handler).__qualname__))
            if group is not None:
                if lease is not None:
                    raise InvalidOption(
                        "a group has no lease of its own",
                        remedy="set that of the topic: postbus topics set NAME --lease 1m",
                    )
                made = Group(self, group, scope, make, filter=filter, on_failure=on_failure, catch_up=catch_up)
                made.add_member(own_name, handler)
                self._add_group(made)
                self._groups[made.topic, group] = made, given_start
                return handler
            of_groups = (key, None if start == Start.NOW else start, mode, look_back, filter, catch_up)
            if on_failure != "block" or any(one is not None for one in of_groups):
                raise InvalidOption(
                    "key, start, mode, look_back, filter, on_failure and catch_up belong to a group",
                    remedy="give group=…, on a topic with semantics PUB_SUB",
                )
            subscription = make(own_name, handler)
            known = self._subscriptions.setdefault(subscription.topic, subscription)
            if known is not subscription:
                raise DuplicateHandler(
                    f"topic {topic!r} has a handler already: {known.name}",
                    remedy="raise its concurrency, or consume another topic",
                )
            return handler

        return register

    def group(
        self,
        name: str,
        topic: str | None = None,
        *,
        key: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        filter: Filter | None = None,
        on_failure: str = "block",
        catch_up: CatchUp | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Group:
        """A group of a PUB_SUB topic, or of a scope, to add members to and to start.

        The options are those of `bus.subscribe()`.

        A message that `filter` rejects, or that those of all members reject, counts as done. One that fails is
        tried again; meanwhile those of its key wait (on_failure="block"), or not ("pass"). `catch_up` bounds how
        it works through what was published before it came, or while it was DEAD.
        """
        scope = Scope.of(topic, key=key, namespace=namespace, task=task)
        make = maker(str(scope), lease=None, **options)
        group = Group(self, name, scope, make, filter=filter, on_failure=on_failure, catch_up=catch_up)
        return self._add_group(group)

    async def relay(
        self,
        topic: str,
        sink: Sink,
        *,
        name: str | None = None,
        start: Start | str | datetime | int = Start.BEGINNING,
        **options: Unpack[RelayOptions],
    ) -> Relay:
        """Send the messages of a topic on to a sink, while the bus runs: by a group of its own, relay-… by default.

        A QUEUE has no groups: its messages go to the sink and to nobody else. The options are explained at
        `RelayOptions`.
        """
        planned = await plan(await self.connect(), topic, sink, name, options, is_stopping=lambda: self._is_stopping)
        relay, handling = planned.relay, planned.handling
        if planned.is_of_queue:
            if Start.of(start) != Start.BEGINNING:
                raise InvalidOption(
                    f"topic {topic!r} is a QUEUE, which has no places to start", remedy="leave start out"
                )
            self.subscribe(topic, name=relay.name, **handling)(relay.handle)
        else:
            group = self.group(relay.name, topic, catch_up=IN_ORDER, **handling)
            group.add_member("sink", relay.handle)
            try:
                await group.start(start)
            except PostbusError:
                del self._groups[topic, relay.name]  # so that it can be tried again
                raise
        self._relays.append(relay)
        return relay

    @property
    def _is_stopping(self) -> bool:
        return self._worker is not None and self._worker.is_stopping

    def _add_group(self, group: Group) -> Group:
        if (group.topic, group.name) in self._groups:
            raise DuplicateHandler(
                f"group {group.name!r} of topic {group.topic!r} exists already in this process",
                remedy="add members to it, or give it another name",
            )
        self._groups[group.topic, group.name] = group, None
        return group

    async def start_group(self, group: Group, start: Start) -> None:
        """Subscribe a group, and consume for it while the bus runs. Use `group.start()`."""
        store = await self.connect()
        if start.mode is None:
            await store.subscribe(group.topic, group.name, start, group.on_failure, group.catch_up)
        else:
            await store.subscribe_scope(group.name, group.scope, start, group.on_failure, group.catch_up)
        self._groups[group.topic, group.name] = group, start
        if self._worker is not None:
            await self._worker.start_group(group, start)

    async def stop_group(self, group: Group) -> None:
        """Consume for a group no longer in this process. Use `group.stop()`."""
        self._groups[group.topic, group.name] = group, None
        if self._worker is not None:
            await self._worker.stop_group(group)

    async def set_group_state(self, group: Group, state: str) -> None:
        """Pause, resume or cancel a group. Use its methods."""
        store = await self.connect()
        if not group.scope.is_wide:
            await store.set_group_state(group.topic, group.name, state)
        elif state == "CANCELLED":
            await store.forget_scope(group.name, group.scope, cancel=True)
        else:
            await store.set_scope_state(group.name, group.scope, state)
        if state == "ACTIVE":
            return
        if group.scope.is_wide:
            await asyncio.gather(*(one.halt_scope(group.name, group.scope) for one in workers_of(store.source)))
        else:
            await self._halt(group.topic, group.name)

    async def _halt(self, topic: str, group: str | None = None) -> None:
        store = await self.connect()
        await asyncio.gather(*(one.halt(topic, group) for one in workers_of(store.source)))

    def use(self, middleware: Middleware) -> None:
        """Add hooks around publishing and handling."""
        self._middleware.append(middleware)

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """What is registered, in that order."""
        return list(self._subscriptions.values())

    async def run(
        self, *, name: str | None = None, signals: bool = True, drain_timeout: Duration | None = None
    ) -> bool:
        """Consume until SIGTERM, SIGINT or `stop()`. Returns True if every handler that began has returned.

        A second one, or the end of `drain_timeout` after the first, cancels the handlers that are still running: their
        messages come again, and that was no attempt. A message whose handler has returned does not come again. Handlers
        in threads cannot be cancelled: they go on until they return or the process ends, which `postbus worker` does.

        The worker is listed by its `name`, or by host and pid; a random part follows. Without `signals` they are left
        to the caller.
        """
        within = None if drain_timeout is None else as_timedelta(drain_timeout, name="drain_timeout").total_seconds()
        if within is not None and within < 0:
            raise InvalidOption(f"drain_timeout {drain_timeout} is negative", remedy="give zero or more")
        groups = [(group, start) for group, start in self._groups.values() if start is not None]
        if not self._subscriptions and not self._groups:
            raise InvalidHandler("nothing to run: no handler is registered", remedy="use @bus.subscribe(topic)")
        self._worker = Worker(
            self.dsn,
            self.subscriptions,
            groups=groups,
            wakers=self._wakers,
            middleware=self._middleware,
            name=name,
            drain_timeout=within,
        )
        try:
            await self.connect()
            await self._worker.run(signals=signals)
            return not self._worker.was_aborted
        finally:
            self._worker = None
            for relay in self._relays:
                await relay.close()

    def stop(self) -> None:
        """Let `run()` drain and return; called again: cancel the handlers that are still running."""
        if self._worker is not None:
            self._worker.stop()

    # connecting

    async def connect(self) -> Store:
        """Connect now rather than at first use."""
        if self._store is None:
            self._connecting = self._connecting or asyncio.Lock()
            async with self._connecting:
                if self._store is None:
                    await self._connect()
        assert self._store is not None
        return self._store

    async def _connect(self) -> None:
        if self._migrate:
            async with connected(self.dsn) as conn:
                await migrator.migrate_if_needed(conn, self._actor)
        store = await Store.open(self.dsn, size=self._pool_size, actor=self._actor)
        self._publisher.connected(store)
        self._puller = Puller(self.dsn, store, self._wakers, self._publisher.notify)
        self._store = store

    def notify(self, topic: str) -> None:
        """Let those look again who wait for messages of a topic: one may be free that was settled elsewhere."""
        self._publisher.notify(topic)

    async def close(self) -> None:
        """Finish what is being sent, disconnect, and let go of an embedded server."""
        if self._puller is not None:
            await self._puller.close()
            await self._puller.say_goodbye()
        await self._publisher.close()
        if self._store is not None:
            await self._store.close()
        self._store = self._puller = None
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        """Let go of threads and of an embedded server, in a program without an event loop."""
        self._publisher.close_threads()
        if self._server is not None:
            self._server.close()

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except PostbusError:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
