"""The relay: the handler of a group, which sends messages to a sink and says what became of each."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from postbus._handling.isolation import will_take_long
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff
from postbus.errors import InvalidOption, PostbusError, SinkUnavailable
from postbus.message import DeadLetter, Message, Outcome, Release, Retry
from postbus.relay.away import Away
from postbus.relay.envelope import Envelope, Unfit
from postbus.relay.sink import NotNow, Parcel, Sink, one_by_one

_LOOK = 0.2  # seconds between looks at whether the process is to end, while the sink is away


class EventRegistry(Protocol):
    """Knows the types of events, and what their payloads look like."""

    def check(self, message: Message) -> object:
        """Raises a PostbusError for a message that nobody could read. What it returns does not matter."""


class Relay:
    """Sends messages to one sink.

    A message is acked when the sink has acknowledged it. Of messages of one key none is sent before the one before it
    was taken, or given up. While the sink is away this waits; that counts as no attempt.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        envelope: Envelope,
        *,
        registry: EventRegistry | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        away: Away | None = None,
    ) -> None:
        for method in ("open", "send", "close"):
            if not callable(getattr(sink, method, None)):
                raise InvalidOption(f"{sink!r:.100} is no sink: it has no {method}()", remedy="see postbus.relay.Sink")
        self.name = name
        """Of its group."""
        self.sink = sink
        self._envelope = envelope
        self._registry = registry
        self._is_stopping = is_stopping
        self._away = away
        self._opening = asyncio.Lock()
        self._is_open = False
        self._opening_number = 0

    async def handle(self, messages: list[Message]) -> Sequence[Outcome]:
        """Send messages; an outcome for each."""
        outcomes: list[Outcome] = [Release()] * len(messages)
        parcels: dict[int, Parcel] = {}
        for place, message in enumerate(messages):
            packed = self._pack(message)
            if isinstance(packed, Parcel):
                parcels[place] = packed
            else:
                outcomes[place] = packed
        held_up: set[str | None] = set()
        for wave in [list(parcels)] if getattr(self.sink, "keeps_order", False) else _waves(parcels):
            places = [place for place in wave if parcels[place].key not in held_up]
            told = await self._deliver([parcels[place] for place in places]) if places else []
            for place, outcome in zip(places, told, strict=True):
                outcomes[place] = outcome
                if isinstance(outcome, Retry | Release) and parcels[place].key is not None:
                    held_up.add(parcels[place].key)
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
        """Send parcels, again and again while the sink is away. Released are only those left when the process ends."""
        outcomes: dict[str, Outcome] = {}
        left = list(parcels)
        failures = 0
        backoff = Backoff()
        while left and await self._opened():
            opening = self._opening_number
            told, error = await self._send(left)
            outcomes |= {one.id: outcome for one, outcome in zip(left, told, strict=True)}
            # What the sink left out behind one that it refused waits for that one, and is not sent now.
            refused = {one.key for one in left if isinstance(outcomes[one.id], Retry)} - {None}
            left = [one for one in left if isinstance(outcomes[one.id], Release) and one.key not in refused]
            if not left:
                break
            was_closed = self._opening_number != opening or not self._is_open
            await self._closed(opening)
            if was_closed:  # by another call, for reasons of its own: no message of this one is to blame
                continue
            if refusals := [one for one in map(outcomes.get, (one.id for one in left)) if isinstance(one, NotNow)]:
                await self._wait(refusals[0].error, backoff.next())
                if self._is_stopping():
                    break
                continue
            failures += 1
            if failures == 2 and len(left) > 1:
                # It opens, and goes away again: one of these may be the reason, and is to be found out.
                told = await one_by_one(self._deliver_one, left)
                outcomes |= {one.id: outcome for one, outcome in zip(left, told, strict=True)}
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
            told = await (sending if self._away is None else self._away.watch(sending))
        except SinkUnavailable as error:
            if self._away is not None:
                await self._away.note(error.message)
            return [Release()] * len(parcels), error.message
        except Exception:
            if self._is_open and self._opening_number == opening:
                raise
            return [Release()] * len(parcels), "another call closed it"
        if len(told) != len(parcels):
            raise InvalidOption(f"{self.sink!r:.100} told {len(told)} outcomes of {len(parcels)} messages")
        if self._away is not None and not all(isinstance(one, Release) for one in told):
            await self._away.is_back()
        return told, "it was not reached"

    async def _wait(self, error: str, seconds: float) -> None:
        """The sink is there, and takes nothing at the moment."""
        will_take_long()
        if self._away is not None:
            await self._away.note(error)
        event(logging.WARNING, "sink.away", relay=self.name, error=error, retry_in=f"{seconds:.2f}s")
        await self._pause(seconds)

    async def _opened(self) -> bool:
        """Wait until the sink is open. False if the process is to end first."""
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
                    if self._away is not None:
                        await self._away.note(str(error))
                    wait = backoff.next()
                    event(logging.WARNING, "sink.away", relay=self.name, error=str(error), retry_in=f"{wait:.2f}s")
                    await self._pause(wait)
        return True

    async def _pause(self, seconds: float) -> None:
        while seconds > 0 and not self._is_stopping():
            await asyncio.sleep(min(seconds, _LOOK))
            seconds -= _LOOK

    async def _closed(self, opening: int | None = None) -> None:
        """Close the sink, unless it was opened again since the given opening."""
        async with self._opening:
            if self._is_open and opening in (None, self._opening_number):
                self._is_open = False
                await self.sink.close()

    async def close(self) -> None:
        """Let go of the sink; it is opened again when there is something to send."""
        await self._closed()
        if self._away is not None:
            await self._away.is_back()


def _waves(parcels: dict[int, Parcel]) -> list[list[int]]:
    """Places of parcels, in steps none of which has two of a key."""
    waves: defaultdict[int, list[int]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for place, parcel in parcels.items():
        if parcel.key is None:
            waves[0].append(place)
        else:
            waves[seen[parcel.key]].append(place)
            seen[parcel.key] += 1
    return [waves[step] for step in sorted(waves)]
