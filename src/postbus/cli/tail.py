"""postbus tail"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from postbus.admin import Admin
from postbus.cli._command import Cli
from postbus.cli._render import message_json, message_line, payload_line, write_json
from postbus.errors import DatabaseUnavailable

_PAGE = 500
_EVERY = 0.25
_LATE = 10.0  # seconds after which a smaller id is no longer expected

_Row = dict[str, Any]
_Place = tuple[int, int]
_START: _Place = (0, -1)


async def tail(
    cli: Cli,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the oldest message.")] = False,
    count: Annotated[int, typer.Option("-n", min=0, max=1_000_000, help="Begin with this many of the newest.")] = 10,
    once: Annotated[bool, typer.Option("--once", help="Show what is there and end.")] = False,
) -> None:
    """Follow a topic without consuming: one line per message, until Ctrl-C.

    Looks four times a second. A message of a QUEUE that was consumed in between is not seen, unless the topic
    keeps finished messages (--retention). Of a PUB_SUB topic all are seen, whatever its groups do.
    """
    async with cli.open_bus() as bus:
        is_log = (await bus.admin.topic(topic))["semantics"] == "PUB_SUB"
        follower = Follower(bus.admin, topic, is_log=is_log)
        async for row in follower.all_messages() if from_start else follower.newest(count):
            _write(cli, row)
        while not once:
            await asyncio.sleep(_EVERY)
            try:
                async for row in follower.new_messages():
                    _write(cli, row)
            except DatabaseUnavailable as error:
                cli.note(f"{error.message}; trying again")
                await asyncio.sleep(2)


def _write(cli: Cli, row: _Row) -> None:
    if cli.as_json:
        write_json(message_json(row))
        return
    payload = payload_line(row["payload"], row["content_type"])
    remark = row["state"] if "state" in row else f"lane {row['lane']}"
    line = message_line(message_id=row["id"], at=row["published_at"], key=row["key"], remark=remark, payload=payload)
    print(line, flush=True)


class Follower:
    """Finds each message once.

    Places are given at publishing but messages appear at commit, so a smaller one may appear after a larger
    one. It looks back as far as the largest place that it knew some seconds ago.
    """

    def __init__(self, admin: Admin, topic: str, *, is_log: bool = False) -> None:
        self._admin = admin
        self._topic = topic
        self._is_log = is_log
        self._seen: dict[int, _Place] = {}
        self._floor = _START
        self._tops: deque[tuple[float, _Place]] = deque()

    async def _page(self, *, after: _Place = _START, limit: int = _PAGE, newest: bool = False) -> list[_Row]:
        if self._is_log:
            return await self._admin.log(self._topic, after=after, limit=limit, newest=newest)
        return await self._admin.messages(self._topic, after_id=after[0], limit=limit, newest=newest)

    async def newest(self, count: int) -> AsyncIterator[_Row]:
        """The last messages there are."""
        rows = await self._page(limit=max(count, _PAGE), newest=True)
        self._remember(rows)
        self._floor = _place(rows[0]) if rows else _START
        for row in rows[len(rows) - count :] if count < len(rows) else rows:
            yield row

    async def all_messages(self) -> AsyncIterator[_Row]:
        """All messages there are."""
        while rows := await self._page(after=self._floor):
            self._seen.clear()
            self._remember(rows)
            self._floor = _place(rows[-1])
            for row in rows:
                yield row
        self._floor = min(self._seen.values(), default=_START)

    async def new_messages(self) -> AsyncIterator[_Row]:
        """Those that have appeared since the last look."""
        self._raise_floor()
        after = self._floor
        while rows := await self._page(after=after):
            after = _place(rows[-1])
            new = [row for row in rows if row["id"] not in self._seen]
            self._remember(new)
            for row in new:
                yield row

    def _remember(self, rows: list[_Row]) -> None:
        if rows:
            self._seen.update((row["id"], _place(row)) for row in rows)
            self._tops.append((time.monotonic(), _place(rows[-1])))

    def _raise_floor(self) -> None:
        before = self._floor
        while self._tops and self._tops[0][0] < time.monotonic() - _LATE:
            self._floor = max(self._floor, self._tops.popleft()[1])
        if self._floor != before:
            self._seen = {one: place for one, place in self._seen.items() if place > self._floor}


def _place(row: _Row) -> _Place:
    """What messages are in the order of."""
    return (row["position"], row["index"]) if "position" in row else (row["id"], 0)
