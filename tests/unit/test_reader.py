"""Reads of the log that several groups share: who reads up to which position."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postbus._content.segment import ReadResult
from postbus._group.log_reader import LogReader

SERVER = datetime(2026, 1, 1, tzinfo=UTC)
SEGMENT = {
    "sequence": 1,
    "lane": 1,
    "first_index": 0,
    "published_at": SERVER,
    "content_type": "text/plain",
    "content_types": None,
    "keys": None,
    "correlation_ids": None,
    "headers": None,
    "count": 1,
    "bytes": 5,
    "payloads": [b"hello"],
}


class _Reads:
    """A store whose reads end when the test says so, with its results."""

    def __init__(self) -> None:
        self.targets: list[str | None] = []
        self._answers: list[asyncio.Future[ReadResult]] = []

    async def read_log(self, *_: Any, target: str | None, **__: Any) -> ReadResult:
        self.targets.append(target)
        self._answers.append(asyncio.get_running_loop().create_future())
        return await self._answers[-1]

    async def answer(self, number: int, place: str, *found: Mapping[str, Any]) -> None:
        """Complete the read of this number at a position, with segments or nothing."""
        end = {
            "next_cursor": place,
            "during_cursor": None,
            "more": False,
            "read_target": place,
            "server": SERVER,
            "took": timedelta(0),
        }
        self._answers[number].set_result(ReadResult("t", [*found, end]))
        await asyncio.sleep(0.001)


def _read(
    reader: LogReader, lane: int, cursor: str, taken_at: float, *, may_have_target: bool = False
) -> asyncio.Task[ReadResult]:
    return asyncio.create_task(
        reader.read("t", (lane,), cursor, taken_at, SERVER, may_have_target=may_have_target, max_count=1, max_bytes=1)
    )


async def test_other_readers_read_up_to_the_first_ones_position() -> None:
    """This holds for readers that waited for it, and for later ones from an earlier position."""
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


async def test_reader_at_a_position_continues_to_a_later_one() -> None:
    """However long its own read took, the order in which positions were taken counts."""
    reads: Any = _Reads()
    reader = LogReader(reads)
    first, second = _read(reader, 1, "a", 0.0), _read(reader, 2, "b", 0.0)
    await asyncio.sleep(0.001)
    await reads.answer(0, "c")
    again = _read(reader, 1, "c", (await first).taken_at)  # continues while the second one still reads up to c
    await asyncio.sleep(0.001)
    await reads.answer(2, "d")
    await reads.answer(1, "c")
    _read(reader, 2, "c", (await second).taken_at)
    await asyncio.sleep(0.001)
    assert reads.targets == [None, "c", None, "d"]
    assert (await again).next_cursor == "d"


async def test_no_reader_returns_to_a_position_taken_beside_its_read() -> None:
    """A read half-way takes no turn, because it is unknown which of the two positions is later."""
    reads: Any = _Reads()
    reader = LogReader(reads)
    half_way = _read(reader, 1, "a", 0.0, may_have_target=True)
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


async def _is_kept(reads: Any, reader: LogReader) -> bool:
    """Return whether a reader that comes to position a gets what was read there once."""
    task = _read(reader, 1, "a", 0.0)
    await asyncio.sleep(0.001)
    task.cancel()
    return len(reads.targets) == 1


async def test_read_result_is_kept_for_all_who_may_come() -> None:
    """Each of three lane sets with the same lanes gets it, waiting or later; then it is gone."""
    reads: Any = _Reads()
    reader = LogReader(reads)
    with ExitStack() as lane_sets:
        for lanes in ((1,), (1,), (1,), (2,)):
            lane_sets.enter_context(reader.reading("t", lanes))
        first, second = (_read(reader, 1, "a", 0.0) for _ in range(2))
        await asyncio.sleep(0.001)
        await reads.answer(0, "b", SEGMENT)
        third = _read(reader, 1, "a", 0.0)
        assert (await first) is (await second) is (await third)
        assert len(reads.targets) == 1
        assert not await _is_kept(reads, reader)


@pytest.mark.parametrize("others", [0, 1])
async def test_read_result_that_nobody_else_can_need_is_not_kept(others: int) -> None:
    """A lane set that is alone with its lanes keeps nothing in memory, nor does one whose others have left."""
    reads: Any = _Reads()
    reader = LogReader(reads)
    with reader.reading("t", (1,)), reader.reading("t", (2,)):
        with ExitStack() as leaving:
            for _ in range(others):
                leaving.enter_context(reader.reading("t", (1,)))
            first = _read(reader, 1, "a", 0.0)
            await asyncio.sleep(0.001)
            await reads.answer(0, "b", SEGMENT)
            await first
        assert not await _is_kept(reads, reader)
