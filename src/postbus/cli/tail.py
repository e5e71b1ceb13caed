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


async def tail(
    cli: Cli,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the oldest message.")] = False,
    count: Annotated[int, typer.Option("-n", min=0, max=1_000_000, help="Begin with this many of the newest.")] = 10,
    once: Annotated[bool, typer.Option("--once", help="Show what is there and end.")] = False,
) -> None:
    """Follow a topic without consuming: one line per message, until Ctrl-C.

    Looks four times a second. A message that was consumed in between is not seen, unless the topic keeps
    finished messages (--retention).
    """
    async with cli.open_bus() as bus:
        await bus.admin.topic(topic)
        follower = _Follower(bus.admin, topic)
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
    line = message_line(
        message_id=row["id"], at=row["published_at"], key=row["key"], remark=row["state"], payload=payload
    )
    print(line, flush=True)


class _Follower:
    """Finds each message once.

    Ids are given at publishing but messages appear at commit, so a smaller id may appear after a larger
    one. It looks back as far as the largest id that it knew some seconds ago.
    """

    def __init__(self, admin: Admin, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._seen: set[int] = set()
        self._floor = 0
        self._tops: deque[tuple[float, int]] = deque()

    async def newest(self, count: int) -> AsyncIterator[_Row]:
        """The last messages there are."""
        rows = await self._admin.messages(self._topic, limit=max(count, _PAGE), newest=True)
        self._remember(rows)
        self._floor = rows[0]["id"] if rows else 0
        for row in rows[len(rows) - count :] if count < len(rows) else rows:
            yield row

    async def all_messages(self) -> AsyncIterator[_Row]:
        """All messages there are."""
        while rows := await self._admin.messages(self._topic, after_id=self._floor, limit=_PAGE):
            self._seen.clear()
            self._remember(rows)
            self._floor = rows[-1]["id"]
            for row in rows:
                yield row
        self._floor = min(self._seen, default=0)

    async def new_messages(self) -> AsyncIterator[_Row]:
        """Those that have appeared since the last look."""
        self._raise_floor()
        after = self._floor
        while rows := await self._admin.messages(self._topic, after_id=after, limit=_PAGE):
            after = rows[-1]["id"]
            new = [row for row in rows if row["id"] not in self._seen]
            self._remember(new)
            for row in new:
                yield row

    def _remember(self, rows: list[_Row]) -> None:
        if rows:
            self._seen.update(row["id"] for row in rows)
            self._tops.append((time.monotonic(), rows[-1]["id"]))

    def _raise_floor(self) -> None:
        before = self._floor
        while self._tops and self._tops[0][0] < time.monotonic() - _LATE:
            self._floor = max(self._floor, self._tops.popleft()[1])
        if self._floor != before:
            self._seen = {one for one in self._seen if one > self._floor}
