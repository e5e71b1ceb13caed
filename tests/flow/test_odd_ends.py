"""Handlers that end in odd ways, and lost answers: no slot is leaked and no message lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postbus import Bus, DatabaseUnavailable, DeadLetter, Message, Outgoing, Retry, RetryPolicy
from postbus._db.store import Store
from postbus._handling.settler import Settler
from support.eventually import eventually
from support.queue_sql import states
from support.running import running

SOON = RetryPolicy(initial=0.001, factor=1, maximum=0.001, max_attempts=2)
NO_TEXT: Any = ValueError("x")


async def nothing_left(conn: Any) -> None:
    async def gone() -> None:
        assert set(await states(conn)) <= {"dead"}

    await eventually(gone)


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


async def awaits_something_cancelled() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    await asyncio.sleep(0)
    task.cancel()
    await task


@pytest.mark.parametrize(
    "odd",
    [
        Retry(delay=-1), Retry(delay=timedelta.max), Retry(delay=float("nan")), Retry(error=NO_TEXT),
        DeadLetter(reason=NO_TEXT), Unprintable(), awaits_something_cancelled, SystemError,
    ],
    ids=["negative", "overflow", "nan", "error object", "reason object", "unprintable", "cancelled", "raises"],
)  # fmt: skip
async def test_worker_survives_odd_outcomes(bus: Bus, conn: Any, odd: Any) -> None:
    """Whatever a handler returns or raises, its message is settled somehow, and the next ones are handled."""
    handled = []

    @bus.subscribe("t", retry=SOON)
    async def handle(payload: Any) -> Any:
        handled.append(payload)
        if odd is awaits_something_cancelled:
            await awaits_something_cancelled()
        if isinstance(odd, type):
            raise odd
        return odd

    async with running(bus):
        for n in range(4):
            await bus.send("t", {"n": n})
        await nothing_left(conn)
    assert {payload["n"] for payload in handled} == set(range(4))


async def test_sync_handler_may_raise_stop_iteration(bus: Bus, conn: Any) -> None:
    """An exception that no future can hold is an error like any other."""

    @bus.subscribe("t", retry=SOON)
    def handle(payload: Any) -> None:
        next(iter([]))

    async with running(bus):
        await bus.send("t", {})
        await nothing_left(conn)
    assert "StopIteration" in ((await bus.admin.dead_letters("t"))[0].last_error or "")


async def test_settlement_with_a_lost_answer_loses_no_other_message(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry that is repeated because its answer was lost says nothing about the rest of its lease."""
    handled: list[int] = []
    real_retry, cut = Store.retry, iter([True])

    async def cut_once(self: Store, *args: Any, **kwargs: Any) -> Any:
        answer = await real_retry(self, *args, **kwargs)
        if next(cut, False):
            raise DatabaseUnavailable("the answer is lost")
        return answer

    monkeypatch.setattr(Store, "retry", cut_once)

    @bus.subscribe("t", batch=3, concurrency=2, retry=SOON)
    async def handle(payloads: list[Any], messages: list[Message]) -> list[Any]:
        handled.extend(payload["n"] for payload in payloads)
        return [Retry(delay=0) if one.key == "again" and one.attempt == 1 else None for one in messages]

    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [Outgoing(payload={"n": n}, key="again" if n == 0 else None) for n in range(8)])
    async with running(bus):
        await nothing_left(conn)
    assert set(handled) == set(range(8))
    assert await bus.admin.dead_letters("t") == []


async def test_message_accepted_as_a_runner_ends_is_run(bus: Bus, conn: Any) -> None:
    """Batches that arrive one by one, each as the last one ends, are all handled."""
    handled = 0

    @bus.subscribe("t", batch=10)
    async def handle(payloads: list[Any]) -> None:
        nonlocal handled
        handled += len(payloads)

    async def all_so_far(count: int) -> None:
        assert handled == count

    async with running(bus):
        for n in range(200):
            await bus.send("t", {"n": n})
            await eventually(all_so_far, n + 1)


async def test_failing_runner_ends_the_worker(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the dispatcher is not swallowed with the message that it had in hand."""

    def broken(self: Settler, lease: Any, message_id: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Settler, "ack", broken)

    @bus.subscribe("t")
    async def handle(payload: Any) -> None: ...

    await bus.send("t", {})
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(bus.run(), 20)


async def test_handler_that_was_not_called_has_made_no_attempt(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a connection for a transactional handler, the message returns as it was."""
    real, away = Store.transaction, iter([True, True, True])

    def no_connection(self: Store, mark: str | None = None) -> Any:
        if next(away, False):
            raise DatabaseUnavailable("no connection")
        return real(self, mark)

    attempts = []

    @bus.subscribe("t", transactional=True, retry=RetryPolicy(max_attempts=1))
    async def handle(payload: Any, message: Message, conn: Any) -> None:
        attempts.append(message.attempt)

    await bus.send("t", {})
    monkeypatch.setattr(Store, "transaction", no_connection)
    async with running(bus):
        await nothing_left(conn)
    assert attempts == [1]


async def test_session_state_of_a_handler_does_not_reach_the_next_one(bus: Bus, conn: Any) -> None:
    """Settings and locks of the session end with the handler that made them."""
    seen = []

    @bus.subscribe("t", transactional=True)
    async def handle(payload: Any, conn: Any) -> None:
        seen.append(await conn.fetchval("select current_setting('app.tenant', true)"))
        await conn.execute("set app.tenant = 'secret'")
        await conn.execute("select pg_advisory_lock(42)")

    async with running(bus):
        await bus.send("t", {})
        await bus.send("t", {})
        await nothing_left(conn)
        assert await conn.fetchval("select count(*) from pg_locks where locktype = 'advisory' and objid = 42") == 0
    assert {value or None for value in seen} == {None}


async def test_errors_within_a_transaction_stay_the_callers(bus: Bus) -> None:
    """An error that the caller's code raises is not taken for an error of the database."""
    for error in (FileNotFoundError("x.csv"), TimeoutError("mine"), KeyError("k")):
        with pytest.raises(type(error)) as caught:
            async with bus.transaction():
                raise error
        assert caught.value is error
