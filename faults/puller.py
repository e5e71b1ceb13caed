"""Consumers that pop: each takes a batch, handles one message after the other, and settles them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from faults.failpoint import AFTER_CLAIM, AFTER_PUTTING_OFF, Failpoint
from faults.journal import Journal, SettlementAccepted
from faults.modes import Mode
from postbus import Bus, Delivery, Popped, PostbusError
from postbus._db.error_map import DRIVER_ERRORS

_AT_ONCE = 3  # pops of a process, for each group
_BATCH = 12
_WAIT = 0.5  # seconds
_BATCH_IN_RHYTHM = 500

Handle = Callable[[Mode, str, Delivery, Any], Awaitable[None]]


class Pullers:
    """All that a process pops.

    With a `rhythm` pops come at certain moments, so many seconds apart, and all consumers are silent in between. Each
    time one of two processes has its turn, with one pop for each group, and pops until nothing is there: it gets what
    there is by the pop that ends the silence, or not at all. Or, to `hold` it, all pop one batch, at which they work
    for so many seconds.
    """

    def __init__(
        self,
        bus: Bus,
        journal: Journal,
        failpoint: Failpoint,
        handle: Handle,
        seed: str,
        *,
        rhythm: float = 0.0,
        hold: float = 0.0,
    ) -> None:
        self._rhythm = rhythm
        self._hold = hold
        self._turn = int(seed.rpartition(".")[2]) % 2
        self._bus = bus
        self._journal = journal
        self._failpoint = failpoint
        self._handle = handle
        self._random = random.Random(seed)
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()

    def add(self, mode: Mode, group: str) -> None:
        for _ in range(1 if self._is_sparse else _AT_ONCE):
            self._tasks.append(asyncio.create_task(self._pull(mode, group)))

    @property
    def _is_sparse(self) -> bool:
        return self._rhythm > 0 and not self._hold

    async def end(self) -> None:
        """Let all finish what they have in hand."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _pull(self, mode: Mode, group: str) -> None:
        if self._is_sparse:
            await self._next_beat()
        while not self._stop.is_set():
            try:
                batch = _BATCH_IN_RHYTHM if self._rhythm else self._random.randint(1, _BATCH)
                popped = await self._bus.pop(mode.topic, group=group, batch=batch, wait=0 if self._rhythm else _WAIT)
                if popped:
                    self._failpoint.reach(AFTER_CLAIM)
                    async with popped.keep():  # a batch may take longer than its lease
                        await self._pause(self._hold)
                        await self._work_through(mode, group, popped)
                if self._rhythm and (self._hold or not popped):
                    await self._next_beat()
            except (PostbusError, *DRIVER_ERRORS):
                await asyncio.sleep(0.1)  # what is not settled comes back when its lease ends

    async def _next_beat(self) -> None:
        beat = int(time.time() / self._rhythm) + 1
        if self._is_sparse and beat % 2 != self._turn:
            beat += 1
        await self._pause(beat * self._rhythm - time.time())

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _work_through(self, mode: Mode, group: str, popped: Popped) -> None:
        """Each message is settled by itself, or all that are done together, at the end."""
        together: list[Delivery] | None = [] if self._random.random() < 0.5 and not mode.transactional else None
        for one in popped:
            if not one.remaining:
                return  # who was held up for so long has lost its lease
            if not one.is_open:
                continue  # one before it, of its key, has failed
            try:
                if mode.transactional:
                    async with self._bus.transaction() as conn:
                        await self._handle(mode, group, one, conn)
                        await one.ack(conn)
                else:
                    await self._handle(mode, group, one, None)
            except RuntimeError as error:
                await one.retry(error=str(error))
                self._failpoint.reach(AFTER_PUTTING_OFF)
                continue
            if together is not None:
                together.append(one)
                continue
            if not mode.transactional:
                await one.ack()
            self._note(mode, group, [one])
        if together:
            await popped.ack()
            self._note(mode, group, together)

    def _note(self, mode: Mode, group: str, settled: Sequence[Delivery]) -> None:
        self._journal.note(
            *(
                SettlementAccepted(mode.topic, f"{group}:{one.message.id}", os.getpid(), str(one.token))
                for one in settled
            )
        )
