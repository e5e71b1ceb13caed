"""The stream that relays send to, and somebody who reads what it has stored."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import nats
from nats.js.api import AckPolicy, ConsumerConfig

from faults.journal import HandlerBegan, HandlerEnded, Journal, now
from faults.modes import Mode

_NAME = "FAULTS"


class _Order(msgspec.Struct):
    key: str
    n: int


async def make_stream(address: str) -> None:
    """One stream for all subjects of the run."""
    client = await nats.connect(address)
    await client.jetstream().add_stream(name=_NAME, subjects=["faults.>"])
    await client.close()


class StreamReader:
    """Notes each message that the stream has stored, as a handler would note one that it has handled."""

    def __init__(self, address: str, modes: Iterable[Mode], journal: Path) -> None:
        self._address = address
        self._places = {mode.subject(group): (mode.name, group) for mode in modes for group in mode.groups}
        self._journal = journal
        self._read = 0
        self._stream: Any = None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Reads within the block."""
        client = await nats.connect(self._address)
        self._stream = client.jetstream()
        pulled = await self._stream.pull_subscribe("", stream=_NAME, config=ConsumerConfig(ack_policy=AckPolicy.NONE))
        with Journal(self._journal) as journal:
            reading = asyncio.create_task(self._note_all(pulled, journal))
            try:
                yield
            finally:
                reading.cancel()
                try:
                    with suppress(asyncio.CancelledError):
                        await reading  # which raises what went wrong
                finally:
                    await client.close()

    async def has_all(self) -> bool:
        """Whether all that the stream has is noted."""
        return bool((await self._stream.stream_info(_NAME)).state.messages == self._read)

    async def _note_all(self, pulled: Any, journal: Journal) -> None:
        while True:
            with suppress(TimeoutError):
                for one in await pulled.fetch(100, timeout=0.2):
                    order = msgspec.json.decode(one.data, type=_Order)
                    what = (*self._places[one.subject], order.key, order.n, os.getpid())
                    journal.note(HandlerBegan(*what, now()), HandlerEnded(*what, now()))
                    self._read += 1
