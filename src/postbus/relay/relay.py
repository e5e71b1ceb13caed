"""The relay: a handler that sends messages to a sink and returns the outcome of each."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from postbus._handling.isolation import will_take_long
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff
from postbus.errors import InvalidOption, PostbusError, SinkUnavailable
from postbus.message import DeadLetter, Message, Outcome, Release, Retry
from postbus.relay.envelope import Envelope, Unfit
from postbus.relay.sink import NotNow, Parcel, Sink, one_by_one
from postbus.relay.sink_monitor import SinkMonitor

_CHECK_EVERY = 0.2  # seconds between checks whether the process is stopping, while the sink is away


@runtime_checkable
class EventRegistry(Protocol):
    """Checks whether messages are valid events."""

    def check(self, message: Message) -> object:
        """Raise a PostbusError for a message that no consumer could read. The returned value is ignored."""


class Relay:
    """Sends messages to one sink.

    A message is acked when the sink has acknowledged it. A message of a key is sent only after the one before it was
    accepted or given up. While the sink is away, the relay waits, and no attempt is counted.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        envelope: Envelope,
        *,
        registry: EventRegistry | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        monitor: SinkMonitor | None = None,
    ) -> None:
        for method in ("open", "send", "close"):
            if not callable(getattr(sink, method, None)):
                raise InvalidOption(f"{sink!r:.100} is no sink: it has no {method}()", remedy="see postbus.relay.Sink")
        self.name = name
        """The name of its group."""
        self.sink = sink
        self._envelope = envelope
        self._registry = registry
        self._is_stopping = is_stopping
        self._monitor = monitor
        self._opening = asyncio.Lock()
        self._is_open = False
        self._opening_number = 0

    async def handle(self, messages: list[Message]) -> Sequence[Outcome]:
        """Send messages. Returns an outcome for each."""
        outcomes: list[Outcome] = [Release()] * len(messages)
        parcels: dict[int, Parcel] = {}
        for index, message in enumerate(messages):
            packed = self._pack(message)
            if isinstance(packed, Parcel):
                parcels[index] = packed
            else:
                outcomes[index] = packed
        held_up: set[str | None] = set()
        for wave in [list(parcels)] if getattr(self.sink, "keeps_order", False) else _waves(parcels):
            indexes = [index for index in wave if parcels[index].key not in held_up]
            results = await self._deliver([parcels[index] for index in indexes]) if indexes else []
            for index, outcome in zip(indexes, results, strict=True):
                outcomes[index] = outcome
                if isinstance(outcome, Retry | Release) and parcels[index].key is not None:
                    held_up.add(parcels[index].key)
        return outcomes

    def _pack(self, message: Message) -> Parcel | Outcome:
        try:
            if self._registry is not None:
                self._registry.check(message)
            return self._envelope.parcel(message)
        except PostbusError as error:
            return DeadLetter(reason=f"the registry refused it: {error}")
        except Unfit as error:
            return DeadLetter(reason=str(error))

    async def _deliver(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Send parcels, again and again while the sink is away. Only the end of the process leaves some released."""
        outcomes: dict[str, Outcome] = {}
        left = list(parcels)
        failures = 0
        backoff = Backoff()
        while left and await self._opened():
            opening = self._opening_number
            results, error = await self._send(left)
            outcomes |= {one.id: outcome for one, outcome in zip(left, results, strict=True)}
            # A message behind a refused one of its key waits for that one, and is not sent now.
            refused = {one.key for one in left if isinstance(outcomes[one.id], Retry)} - {None}
            left = [one for one in left if isinstance(outcomes[one.id], Release) and one.key not in refused]
            if not left:
                break
            was_closed = self._opening_number != opening or not self._is_open
            await self._closed(opening)
            if was_closed:  # another call closed it: no message of this one is to blame
                continue
            if refusals := [one for one in map(outcomes.get, (one.id for one in left)) if isinstance(one, NotNow)]:
                await self._wait(refusals[0].error, backoff.next())
                if self._is_stopping():
                    break
                continue
            failures += 1
            if failures == 2 and len(left) > 1:
                # The sink opens and goes away again. One of these messages may be the reason: find out which.
                results = await one_by_one(self._deliver_one, left)
                outcomes |= {one.id: outcome for one, outcome in zip(left, results, strict=True)}
                break
            if failures == 2:
                outcomes[left[0].id] = Retry(error=f"the sink goes away when it gets this: {error}")
                break
        return [outcomes.get(one.id, Release()) for one in parcels]

    async def _deliver_one(self, parcel: Parcel) -> Outcome:
        return (await self._deliver([parcel]))[0]

    async def _send(self, parcels: Sequence[Parcel]) -> tuple[Sequence[Outcome], str]:
        opening = self._opening_number
        sending = self.sink.send(parcels)
        try:
            outcomes = await (sending if self._monitor is None else self._monitor.watch(sending))
        except SinkUnavailable as error:
            if self._monitor is not None:
                await self._monitor.report(error.message)
            return [Release()] * len(parcels), error.message
        except Exception:
            if self._is_open and self._opening_number == opening:
                raise
            return [Release()] * len(parcels), "another call closed it"
        if len(outcomes) != len(parcels):
            raise InvalidOption(
                f"{self.sink!r:.100} returned {len(outcomes)} outcomes for {len(parcels)} messages",
                remedy="return one outcome for each parcel, in their order",
            )
        if self._monitor is not None and not all(isinstance(one, Release) for one in outcomes):
            await self._monitor.is_back()
        return outcomes, "it was not reached"

    async def _wait(self, error: str, seconds: float) -> None:
        """Wait, because the sink is there but accepts nothing at the moment."""
        will_take_long()
        if self._monitor is not None:
            await self._monitor.report(error)
        event(logging.WARNING, "sink.away", relay=self.name, error=error, retry_in=f"{seconds:.2f}s")
        await self._pause(seconds)

    async def _opened(self) -> bool:
        """Wait until the sink is open. False if the process stops first."""
        backoff = Backoff()
        async with self._opening:
            while not self._is_open:
                if self._is_stopping():
                    return False
                try:
                    await self.sink.open()
                    self._is_open = True
                    self._opening_number += 1
                    event(logging.INFO, "sink.opened", relay=self.name)
                except PostbusError as error:
                    will_take_long()
                    if self._monitor is not None:
                        await self._monitor.report(str(error))
                    wait = backoff.next()
                    event(logging.WARNING, "sink.away", relay=self.name, error=str(error), retry_in=f"{wait:.2f}s")
                    await self._pause(wait)
        return True

    async def _pause(self, seconds: float) -> None:
        while seconds > 0 and not self._is_stopping():
            await asyncio.sleep(min(seconds, _CHECK_EVERY))
            seconds -= _CHECK_EVERY

    async def _closed(self, opening: int | None = None) -> None:
        """Close the sink, unless it was opened again since the given opening."""
        async with self._opening:
            if self._is_open and opening in (None, self._opening_number):
                self._is_open = False
                await self.sink.close()

    async def close(self) -> None:
        """Close the sink. It is opened again when there are messages to send."""
        await self._closed()
        if self._monitor is not None:
            await self._monitor.is_back()


def _waves(parcels: dict[int, Parcel]) -> list[list[int]]:
    """The indexes of parcels in steps, none of which has two parcels of one key."""
    waves: defaultdict[int, list[int]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for index, parcel in parcels.items():
        if parcel.key is None:
            waves[0].append(index)
        else:
            waves[seen[parcel.key]].append(index)
            seen[parcel.key] += 1
    return [waves[step] for step in sorted(waves)]
