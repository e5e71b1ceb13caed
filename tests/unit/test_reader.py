"""Reads of the log that several groups share: who reads up to which place."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from postbus._reader import LogReader
from postbus._segment import Piece

SERVER = datetime(2026, 1, 1, tzinfo=UTC)


class _Reads:
    """A store whose reads end when, and with what, a test says."""

    def __init__(self) -> None:
        self.targets: list[str | None] = []
        self._answers: list[asyncio.Future[Piece]] = []

    async def read_log(self, *_: Any, target: str | None, **__: Any) -> Piece:
        self.targets.append(target)
        self._answers.append(asyncio.get_running_loop().create_future())
        return await self._answers[-1]

    async def answer(self, number: int, place: str) -> None:
        """The read of this number has come to a place, and found nothing on the way."""
        end = {
            "next_cursor": place,
            "during_cursor": None,
            "more": False,
            "read_target": place,
            "server": SERVER,
            "took": timedelta(0),
        }
        self._answers[number].set_result(Piece("t", [end]))
        await asyncio.sleep(0.001)


def _read(
    reader: LogReader, lane: int, cursor: str, taken_at: float, *, is_between: bool = False
) -> asyncio.Task[Piece]:
    return asyncio.create_task(
        reader.read("t", (lane,), cursor, taken_at, SERVER, is_between=is_between, max_count=1, max_bytes=1)
    )


async def test_others_read_up_to_the_place_that_the_first_one_has_come_to() -> None:
    """Those who waited for it, and those who come later and stood at a place before it."""
    reads: Any = _Reads()
    reader = LogReader(reads)
    first, second = _read(reader, 1, "a", 0.0), _read(reader, 2, "b", 0.0)
    await asyncio.sleep(0.001)
    assert reads.targets == [None]
    await reads.answer(0, "c")
    assert reads.targets == [None, "c"]
    await reads.answer(1, "c")
    assert (await first).taken_at == (await second).taken_at

    third = _read(reader, 3, "b", 0.0)
    await asyncio.sleep(0.001)
    assert reads.targets == [None, "c", "c"]
    third.cancel()


async def test_who_stands_at_a_place_goes_on_to_a_later_one() -> None:
    """However long its own read took: what counts is when places were taken, one after the other."""
    reads: Any = _Reads()
    reader = LogReader(reads)
    first, second = _read(reader, 1, "a", 0.0), _read(reader, 2, "b", 0.0)
    await asyncio.sleep(0.001)
    await reads.answer(0, "c")
    again = _read(reader, 1, "c", (await first).taken_at)  # goes on, while the second one still reads up to c
    await asyncio.sleep(0.001)
    await reads.answer(2, "d")
    await reads.answer(1, "c")
    _read(reader, 2, "c", (await second).taken_at)
    await asyncio.sleep(0.001)
    assert reads.targets == [None, "c", None, "d"]
    assert (await again).next_cursor == "d"


async def test_nobody_goes_back_to_a_place_that_was_taken_during_a_read_beside_it() -> None:
    """A read half-way takes no turn: of a place that was taken meanwhile nobody knows which of the two is later."""
    reads: Any = _Reads()
    reader = LogReader(reads)
    half_way = _read(reader, 1, "a", 0.0, is_between=True)
    same = _read(reader, 1, "a", 0.0)
    other = _read(reader, 2, "b", 0.0)
    await asyncio.sleep(0.001)
    assert reads.targets == [None, None]
    await reads.answer(1, "c")
    await reads.answer(0, "d")
    assert (await same) is (await half_way)

    _read(reader, 1, "d", (await same).taken_at)
    await asyncio.sleep(0.001)
    assert reads.targets == [None, None, None]
    assert (await other).next_cursor == "c"
