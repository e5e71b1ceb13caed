"""A consumer that fails for a reason of its own does not disturb the others of its process."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from postbus import Bus, Message, Retry
from postbus._group.handler import GroupHandler
from postbus._handling.settler import Settler
from postbus._queue.claimer import Claimer
from support.eventually import eventually
from support.grouping import SOON, create_log, has
from support.running import running


async def test_failing_claim_does_not_end_other_consumers(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failing consumer is restarted, and gets its messages once the cause is gone."""
    got: dict[str, list[int]] = {"bad": [], "good": [], "log": []}
    is_broken, real = True, Claimer.tick

    async def broken(self: Claimer, room: int) -> float:
        if is_broken and self._subscription.topic == "bad":
            raise ZeroDivisionError("broken")
        return await real(self, room)

    monkeypatch.setattr(Claimer, "tick", broken)
    await create_log(bus, "log")
    for topic in ("bad", "good"):

        @bus.subscribe(topic, name=topic)
        async def handle(n: int, message: Message) -> None:
            got[message.topic].append(n)

    bus.subscribe("log", group="g", start="FROM_BEGINNING")(handle)

    async def came(*topics: str) -> None:
        assert all(got[topic] == [1] for topic in topics), got

    async def is_told() -> None:
        assert "consumer.failed" in caplog.text
        assert "ZeroDivisionError: broken" in caplog.text

    async with running(bus) as run:
        for topic in got:
            await bus.send(topic, 1)
        await eventually(is_told)
        await eventually(came, "good", "log")
        is_broken = False
        await eventually(came, "bad")
        assert not run.done()


async def test_failing_group_task_does_not_end_other_consumers(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on, and the group reads its messages in hand again."""
    got: dict[str, list[int]] = {"queue": [], "log": []}
    breaks, real = iter([True]), GroupHandler.handle_one

    async def broken(self: GroupHandler, *args: Any) -> Any:
        if next(breaks, False):
            raise ZeroDivisionError("broken")
        return await real(self, *args)

    monkeypatch.setattr(GroupHandler, "handle_one", broken)
    await create_log(bus, "log")

    @bus.subscribe("queue")
    async def from_queue(n: int) -> None:
        got["queue"].append(n)

    @bus.subscribe("log", group="g", start="FROM_BEGINNING")
    async def from_log(n: int) -> None:
        got["log"].append(n)

    async def all_came() -> None:
        assert all(set(numbers) == {1, 2} for numbers in got.values()), got

    async with running(bus) as run:
        for n in (1, 2):
            for topic in got:
                await bus.send(topic, n)
        await eventually(all_came, within=20)
        assert not run.done()


async def test_failing_queue_task_does_not_end_other_consumers(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only handled messages are acknowledged, and the rest comes again when its lease ends."""
    got: dict[str, list[int]] = {"bad": [], "good": []}
    breaks, real = iter([True]), Settler.retry

    async def broken(self: Settler, *args: Any) -> None:
        if next(breaks, False):
            raise ZeroDivisionError("broken")
        await real(self, *args)

    monkeypatch.setattr(Settler, "retry", broken)
    for topic in got:
        await bus.admin.create_topic(topic, lease="1s")  # whichever comes first breaks

        @bus.subscribe(topic, name=topic, concurrency=4)
        async def handle(n: int, message: Message) -> Retry | None:
            if n == 2 and message.attempt == 1:
                return Retry()
            got[message.topic].append(n)
            return None

    async def all_came() -> None:
        assert all(sorted(set(numbers)) == [1, 2, 3] for numbers in got.values()), got

    await bus.send_many("bad", [1, 2, 3])
    async with running(bus) as run:
        await bus.send_many("good", [1, 2, 3])
        await eventually(all_came, within=30)
        assert not run.done()


class Panic(BaseException):
    """An error as extension modules in Rust raise it."""


class Payload(msgspec.Struct):
    """A payload that cannot be decoded from every message."""

    n: int

    def __post_init__(self) -> None:
        if self.n == 1:
            raise Panic("no Exception")


async def one(n: int) -> None:
    if n == 1:
        raise Panic("no Exception")


async def many(numbers: list[int]) -> None:
    for n in numbers:
        await one(n)


async def in_transaction(n: int, conn: Any) -> None:
    await one(n)


def in_thread(n: int) -> None:
    if n == 1:
        sys.exit("no Exception either")


async def decoded(payload: Payload) -> None: ...


@pytest.mark.parametrize("handler", [one, many, in_transaction, in_thread, decoded])
@pytest.mark.parametrize("group", [None, "g"])
async def test_base_exception_fails_one_message_only(bus: Bus, handler: Any, group: str | None) -> None:
    """The message is a dead letter after its attempts, and the worker and its other consumers go on."""
    await create_log(bus, "log")
    topic = "log" if group else "queue"
    options: dict[str, Any] = {"group": group, "start": "FROM_BEGINNING"} if group else {}
    others: list[int] = []
    bus.subscribe(
        topic,
        retry=SOON,
        batch=2 if handler is many else None,
        transactional=handler is in_transaction,
        **options,
    )(handler)

    @bus.subscribe("other")
    async def other(n: int) -> None:
        others.append(n)

    async with running(bus) as run:
        await bus.send(topic, {"n": 1} if handler is decoded else 1)
        await eventually(lambda: dead_letters(bus, topic))
        await bus.send("other", 1)
        await has(others, 1)
        assert not run.done()
    assert len(await bus.admin.dead_letters(topic)) == 1


async def dead_letters(bus: Bus, topic: str) -> None:
    assert await bus.admin.dead_letters(topic)


async def test_filter_that_raises_a_base_exception_fails_its_group_only(bus: Bus) -> None:
    """Its messages are retried, and other consumers go on."""
    await create_log(bus, "log")
    others: list[int] = []

    def panic(message: Message) -> bool:
        raise Panic("no Exception")

    async def collect(n: int) -> None:
        others.append(n)

    bus.subscribe("log", group="bad", start="FROM_BEGINNING", filter=panic)(one)
    bus.subscribe("log", group="good", start="FROM_BEGINNING")(collect)
    async with running(bus) as run:
        await bus.send_many("log", [1, 2])
        await has(others, 2)

        async def awaits_retry() -> None:
            assert (await bus.admin.group("log", "bad")).retrying == 2

        await eventually(awaits_retry)
        assert not run.done()


async def test_group_joins_when_its_topic_is_migrated(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """A worker started before `topics migrate` serves its other consumers, and logs what to do about this one."""
    got: dict[str, list[int]] = {"early": [], "other": []}
    await bus.admin.create_topic("early")
    await create_log(bus, "other")
    for topic in got:

        @bus.subscribe(topic, name=topic, group="g", start="FROM_BEGINNING")
        async def handle(n: int, message: Message) -> None:
            got[message.topic].append(n)

    async def came(topic: str) -> None:
        assert got[topic] == [1]

    async def is_told() -> None:
        assert "postbus topics migrate early --to PUB_SUB --group g" in caplog.text

    async with running(bus) as run:
        await bus.send("other", 1)
        await eventually(is_told)
        await eventually(lambda: came("other"))
        await bus.admin.move_topic("early", groups=["g"])
        await bus.send("early", 1)
        await eventually(lambda: came("early"), within=30)
        assert not run.done()
    assert "Traceback" not in caplog.text


async def test_queue_handler_of_a_pub_sub_topic_does_not_end_others(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """Its claims are refused with the remedy, and the other consumers work."""
    await create_log(bus, "log")
    got: list[int] = []
    bus.subscribe("log")(got.append)
    bus.subscribe("queue")(got.append)

    async def is_told() -> None:
        assert "name the group that the messages are for" in caplog.text
        assert got == [1]

    async with running(bus) as run:
        await bus.send("queue", 1)
        await eventually(is_told)
        assert not run.done()
