"""The bus, with which a program publishes, consumes and administers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from uuid import UUID

import asyncpg

from postbus._consumers.group_control import GroupControl
from postbus._consumers.handlers import HandlerRegistry
from postbus._content.outgoing import outgoing
from postbus._db.actor import checked_actor
from postbus._db.process import process_name
from postbus._db.store import Store
from postbus._drivers.base import AsyncConnection
from postbus._publish.publisher import Publisher
from postbus._pull.puller import Puller
from postbus._wakeup.waiters import Wakers
from postbus.admin import Admin
from postbus.errors import InvalidHandler, InvalidOption, PostbusError
from postbus.events import emission
from postbus.group import Group, GroupOptions, SubscribeOptions
from postbus.message import PublishOptions
from postbus.middleware import Middleware
from postbus.options import Duration, as_wait
from postbus.pull import Pop, PopOptions, pop
from postbus.relay import Relay, RelayOptions, Sink
from postbus.relay.plan import plan, register
from postbus.scope import Heartbeat, Scope
from postbus.start import Default, Mode, Start
from postbus.subscription import Subscription
from postbus.worker import Worker

if TYPE_CHECKING:
    from postbus.embedded import EmbeddedPostgres

H = TypeVar("H", bound=Callable[..., Any])


class Bus:
    """Publishes to and consumes from one database.

    `Bus.open()` makes one. It connects at its first use; `async with` or `close()` disconnects it.
    """

    def __init__(
        self,
        dsn: str,
        *,
        server: EmbeddedPostgres | None = None,
        migrate: bool = False,
        pool_size: int = 10,
        default_mode: Mode | None = None,
        actor: str | None = None,
    ) -> None:
        self.dsn = dsn
        self.default = Default(default_mode)
        self._actor = "" if actor is None else checked_actor(actor)
        self._server, self._data_dir = server, server.data_dir if server else None
        self._migrate, self._pool_size = migrate, pool_size
        self._handlers = HandlerRegistry(GroupControl(self.connect, self.default, lambda: self._worker))
        self._middleware: list[Middleware] = []
        self._wakers = Wakers()
        self._publisher = Publisher(dsn, self._wakers, self._middleware)
        self._connecting = asyncio.Lock()
        self._store: Store | None = None
        self._puller: Puller | None = None
        self._worker: Worker | None = None
        self._relays: list[Relay] = []
        self.admin = Admin(self.connect, self.default, self._handlers.groups.halt)

    @classmethod
    def open(
        cls,
        dsn: str | None = None,
        *,
        data_dir: str | Path | None = None,
        version: int = 18,
        migrate: bool | None = None,
        pool_size: int = 10,
        default_mode: Mode | None = None,
        actor: str | None = None,
    ) -> Self:
        """Open a bus on the server of `dsn`, of POSTBUS_DSN, or on an embedded PostgreSQL.

        An embedded server keeps its data in `data_dir`, which counts more than POSTBUS_DSN. Its database is migrated
        automatically; other databases only with `migrate=True`. `default_mode` (new or all), or
        POSTBUS_DEFAULT_SUBSCRIPTION_MODE, is where a group starts that names no start. The audit log shows `actor`
        beside the database user.
        """
        if dsn and data_dir is not None:
            raise InvalidOption("dsn and data_dir are both given", remedy="give dsn for a server of yours, or data_dir")
        dsn, server = dsn or (os.environ.get("POSTBUS_DSN") if data_dir is None else None), None
        if not dsn:
            from postbus.embedded import EmbeddedPostgres

            server = EmbeddedPostgres.start(data_dir, version=version)
            dsn, migrate = server.dsn(), migrate is not False
        return cls(
            dsn, server=server, migrate=bool(migrate), pool_size=pool_size, default_mode=default_mode, actor=actor
        )  # fmt: skip

    # publishing

    @overload
    def publish(
        self, conn: AsyncConnection, topic: str, payload: Any, **options: Unpack[PublishOptions]
    ) -> Awaitable[int]: ...

    @overload
    def publish(self, conn: object, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> int: ...

    def publish(self, conn: Any, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> Any:
        """Publish a message in the transaction of `conn`: it exists if and only if your transaction commits.

        Returns the message's id, or on an async connection an awaitable of it.
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
        """Publish an event of a `Registry` to its topic, in the transaction of `conn`, after checking it.

        The aggregate's id is the message's key, so events of one aggregate keep their order. Returns what `publish`
        returns.
        """
        topic, message = emission(event, aggregate_id=aggregate_id, **options)
        return self.publish(conn, topic, message)

    async def send(self, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> int:
        """Publish in a transaction of the bus. Returns the message's id once it is committed.

        Concurrent calls share a commit, so many calls at once are fast.
        """
        message = outgoing(payload, **options)
        await self.connect()
        return await self._publisher.send(topic, message)

    async def send_many(self, topic: str, messages: Iterable[Any]) -> list[int]:
        """Publish payloads, or `Outgoing` messages, in one transaction of the bus: all of them or none.

        Returns their ids once they are committed.
        """
        await self.connect()
        return await self._publisher.send_many(topic, messages)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        """A transaction on a connection of the bus. Cancellation does not interrupt its COMMIT.

        Only the end of the block may end it. If a statement in the block ends it, TransactionEnded is raised, and a
        transaction that was begun after that is rolled back.
        """
        puller = await self._connected_puller()
        with puller.settler.noting() as note:
            async with (await self.connect()).transaction() as conn:
                note(conn)
                yield conn

    # consuming

    def pop(self, topic: str | None = None, **options: Unpack[PopOptions]) -> Pop:
        """Take messages of a QUEUE or for a group: `await` it, or use it as `async with`.

        A group may name a pattern as `topic`, or a `namespace` or `task` instead of one. Its first pop subscribes it.
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

        With `last`, this consumer, called `member`, stops as planned: its group is shown as stopped until its next
        sign of life. `close()` does this automatically for groups that this bus has popped for.
        """
        store = await self.connect()
        scope = Scope.of(topic, namespace=namespace, task=task)
        return await store.send_heartbeat(group, scope, stopped_by=(member or process_name()) if last else None)

    async def _connected_puller(self) -> Puller:
        await self.connect()
        assert self._puller is not None
        return self._puller

    def subscribe(self, topic: str | None = None, **options: Unpack[SubscribeOptions]) -> Callable[[H], H]:
        """Register a handler for a QUEUE, or with `group` for a PUB_SUB topic or for all topics in a scope.

        A group consumes a topic, one `key` of it, all topics of a `namespace` or of a `task`, or all whose names match
        a pattern (orders.* for one more word, orders.# for any number). Topics that are created later join by
        themselves. A new group begins at `start`. `mode` does the same and is recorded: new (from now on, and what was
        published in the `look_back` before, 4 seconds), all, or timestamp with a time as `start`.

        The options are `name`, `lease`, `start`, `mode`, `look_back` and `group`, the options of `bus.group()`, and
        `concurrency`, `batch`, `transactional`, `retry`, `timeout` and `poll`: see `SubscribeOptions`, `GroupOptions`
        and `Subscription`.
        """
        return self._handlers.decorator(topic, **options)

    def group(self, name: str, topic: str | None = None, **options: Unpack[GroupOptions]) -> Group:
        """A group of a PUB_SUB topic or of a scope. Add members to it, then start it.

        The options are `key`, `namespace`, `task`, `filter`, `on_failure` and `catch_up`, and those of handlers: see
        `bus.subscribe()`.

        A message counts as done if `filter` rejects it, or if the filters of all members do. A message that fails is
        tried again; until then other messages of its key wait (on_failure="block") or pass it ("pass"). `catch_up`
        limits how fast the group works through messages from before it was new, or while it was DEAD.
        """
        return self._handlers.group(name, topic, **options)

    async def relay(
        self,
        topic: str,
        sink: Sink,
        *,
        name: str | None = None,
        start: Start | str | datetime | int = Start.BEGINNING,
        **options: Unpack[RelayOptions],
    ) -> Relay:
        """Send the messages of a topic to a sink while the bus runs, by a group of its own (relay-… by default).

        A QUEUE has no groups: its messages go to the sink and to no other consumer. The options are explained at
        `RelayOptions`.
        """

        def is_stopping() -> bool:
            return self._worker is not None and self._worker.is_stopping

        planned = await plan(await self.connect(), topic, sink, name, options, is_stopping=is_stopping)
        await register(planned, self._handlers, start)
        self._relays.append(planned.relay)
        return planned.relay

    def use(self, middleware: Middleware) -> None:
        """Add hooks around publishing and handling."""
        self._middleware.append(middleware)

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The handlers of queues, in the order in which they were registered."""
        return self._handlers.subscriptions

    async def run(
        self, *, name: str | None = None, signals: bool = True, drain_timeout: Duration | None = None
    ) -> bool:
        """Consume until SIGTERM, SIGINT or `stop()`. Returns True if every handler that began has returned.

        A second signal, or the end of `drain_timeout` after the first, cancels the handlers that are still running.
        Their messages are delivered again, and no attempt is counted. A message whose handler has returned is not
        delivered again. Handlers in threads cannot be cancelled: they run until they return or the process ends, as
        `postbus worker` then does.

        Operators see the worker by `name`, or by host and pid, with a random suffix. With `signals=False` the caller
        handles signals.
        """
        drain_seconds = None if drain_timeout is None else as_wait(drain_timeout, name="drain_timeout")
        if not self._handlers:
            raise InvalidHandler("nothing to run: no handler is registered", remedy="use @bus.subscribe(topic)")
        self._worker = worker = Worker(
            self.dsn,
            self.subscriptions,
            groups=self._handlers.groups.started(),
            wakers=self._wakers,
            middleware=self._middleware,
            name=name,
            drain_timeout=drain_seconds,
        )
        try:
            await self.connect()
            await worker.run(signals=signals)
            return not worker.was_aborted
        finally:
            self._worker = None
            for relay in self._relays:
                await relay.close()

    def stop(self) -> None:
        """Let `run()` drain and return. A second call cancels the handlers that are still running."""
        if self._worker is not None:
            self._worker.stop()

    # connecting

    async def connect(self) -> Store:
        """Connect now instead of at the first use."""
        if self._store is None:
            async with self._connecting:
                if self._store is None:
                    await self._connect()
        assert self._store is not None
        return self._store

    async def _connect(self) -> None:
        store = await Store.open(
            self.dsn, size=self._pool_size, actor=self._actor, migrate=self._migrate, data_dir=self._data_dir
        )
        self._publisher.connected(store)
        self._puller, self._store = Puller(self.dsn, store, self._wakers, self._publisher.notify), store

    def notify(self, topic: str) -> None:
        """Wake the consumers of a topic, because a message may be free that was settled elsewhere."""
        self._publisher.notify(topic)

    async def close(self) -> None:
        """Finish pending sends and settlements, disconnect, and release an embedded server."""
        if self._puller is not None:
            await self._puller.close()
            await self._puller.report_stopped()
        await self._publisher.close()
        if self._store is not None:
            await self._store.close()
        self._store = self._puller = None
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        """End the bus's threads and release an embedded server, in a program without an event loop."""
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
