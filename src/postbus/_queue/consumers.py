"""Consumes the queues of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from postbus._db.store import Store
from postbus._handling.isolation import SuspectSource
from postbus._handling.settler import Settler
from postbus._queue.claimer import Claimer
from postbus._queue.dispatcher import Dispatcher
from postbus._runtime.restarter import Restarter
from postbus._wakeup.waiters import Wakers, topic_id
from postbus.errors import WrongSemantics
from postbus.middleware import Middleware
from postbus.subscription import Subscription


class QueueConsumers:
    """A claimer and a dispatcher for each subscription to a queue, and one settler for all."""

    def __init__(
        self,
        subscriptions: Sequence[Subscription],
        *,
        member: str,
        store: Store,
        handler_store: Store,
        middleware: Sequence[Middleware],
        wakers: Wakers,
        restarter: Restarter,
    ) -> None:
        self.settler = Settler(store, lambda topic: wakers.wake(topic_id(topic)))
        self._store = store
        self._restarter = restarter
        self._topics = [one.topic for one in subscriptions]
        self._dispatchers = [Dispatcher(one, handler_store, self.settler, middleware) for one in subscriptions]
        self._claimers = [
            Claimer(one, store, dispatcher, self.settler, member=member, waker=wakers.add(one.topic))
            for one, dispatcher in zip(subscriptions, self._dispatchers, strict=True)
        ]

    def claim(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """The loops that claim messages. Each runs until `stop` is set."""
        return [self._restarter.run(one.topic, partial(one.run, stop)) for one in self._claimers]

    def watch(self) -> list[Coroutine[Any, Any, None]]:
        """The tasks that report failures of dispatchers. A dispatcher itself goes on after a failure."""
        return [
            self._restarter.run(topic, dispatcher.failure)
            for topic, dispatcher in zip(self._topics, self._dispatchers, strict=True)
        ]

    async def with_suspects(self) -> list[SuspectSource]:
        """The claimers of topics that have suspects."""
        topics = await self._store.suspected(self._topics) if self._topics else []
        return [one for one in self._claimers if one.topic in topics]

    async def halt(self, topic: str) -> None:
        """Begin with no more messages of a topic, because it is paused."""
        await asyncio.gather(*(one.halt() for one in self._claimers if one.topic == topic))

    def stop_claiming(self) -> None:
        for dispatcher in self._dispatchers:
            dispatcher.stop_claiming()

    async def drain(self) -> None:
        """Release messages whose handlers have not begun, and wait for those that have."""
        await asyncio.gather(*(dispatcher.drain() for dispatcher in self._dispatchers))

    async def abort(self) -> None:
        """Cancel the handlers that run."""
        for dispatcher in self._dispatchers:
            await dispatcher.abort()
            dispatcher.close()

    @property
    def was_cut_short(self) -> bool:
        """Whether a handler was cancelled."""
        return any(one.was_cut_short for one in self._dispatchers)


async def check_is_queue(store: Store, subscription: Subscription) -> None:
    """Refuse a subscription without a group to a PUB_SUB topic, unless messages are left in its former queue."""
    topic = subscription.topic
    if (await store.semantics(topic)).get(topic) == "PUB_SUB" and not (await store.topics(topic))[0].in_queue:
        raise WrongSemantics(
            f"topic {topic!r} is PUB_SUB, and {subscription.name} belongs to no group",
            remedy="name its group: @bus.subscribe(topic, group=…)",
        )
