"""Hooks around publishing: what they see, what they may change, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from api.drivers import PROGRAMS, Program
from postbus import Bus, InvalidOption, Middleware, Outgoing


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


class Stamp(Middleware):
    """Adds its name to a header."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log

    @contextmanager
    def publishing(self, topic: str, messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
        self._log.append(f"{self._name} in")
        try:
            yield [self._stamped(one) for one in messages]
        finally:
            self._log.append(f"{self._name} out")

    def _stamped(self, message: Outgoing) -> Outgoing:
        stamps = (message.headers or {}).get("stamps", "")
        return msgspec.structs.replace(message, headers={"stamps": stamps + self._name})


class Refuse(Middleware):
    """Lets nothing through."""

    @contextmanager
    def publishing(self, topic: str, messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
        raise PermissionError(f"{topic}: {[one.payload for one in messages]}")
        yield messages


async def _stamps(conn: Any, topic: str) -> list[str]:
    rows = await conn.fetch(
        "select headers->>'stamps' as stamps from postbus.messages where topic = $1 order by id", topic
    )
    return [row["stamps"] for row in rows]


@pytest.fixture(params=["asyncpg", "psycopg", "SQLAlchemy Session"])
async def program(request: pytest.FixtureRequest, dsn: str) -> Any:
    async with PROGRAMS[request.param](dsn) as opened:
        yield opened


async def test_hooks_change_published_messages(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """The hook that was added first is the outermost: first in, last out, and first to change a message."""
    log: list[str] = []
    bus.use(Stamp("a", log))
    bus.use(Stamp("b", log))

    await program.begin()
    await program.publish(bus, topic, "x")
    await program.publish_many(bus, topic, ["y", Outgoing(payload="z", headers={"stamps": "-"})])
    await program.commit()

    assert await _stamps(conn, topic) == ["ab", "ab", "-ab"]
    assert log == ["a in", "b in", "b out", "a out"] * 2


async def test_hooks_change_sent_messages(bus: Bus, conn: Any, topic: str) -> None:
    """`send()` passes the same hooks, which are left when the message is committed."""
    log: list[str] = []
    bus.use(Stamp("a", log))

    await bus.send(topic, "x")

    assert await _stamps(conn, topic) == ["a"]
    assert log == ["a in", "a out"]


async def test_failing_hook_publishes_nothing(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """The error of a hook reaches the caller, the hooks around it are left, and the transaction can go on."""
    log: list[str] = []
    bus.use(Stamp("a", log))
    bus.use(Refuse())

    await program.begin()
    with pytest.raises(PermissionError, match=rf"{topic}: \['x'\]"):
        await program.publish(bus, topic, "x")
    with pytest.raises(PermissionError):
        await program.publish_many(bus, topic, ["y", "z"])
    await program.commit()
    with pytest.raises(PermissionError):
        await bus.send(topic, "x")

    assert await _stamps(conn, topic) == []
    assert log == ["a in", "a out"] * 3


async def test_hooks_see_a_failed_publish(bus: Bus, conn: Any, topic: str) -> None:
    """A refused message raises through the hooks."""
    seen: list[BaseException] = []

    class Watch(Middleware):
        @contextmanager
        def publishing(self, topic: str, messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
            try:
                yield messages
            except Exception as error:
                seen.append(error)
                raise

    bus.use(Watch())
    with pytest.raises(InvalidOption):
        await bus.publish(conn, topic, "x", priority=10)
    with pytest.raises(InvalidOption):
        await bus.send(topic, "x", priority=10)

    assert [type(error) for error in seen] == [InvalidOption, InvalidOption]


async def test_middleware_without_hooks_changes_nothing(bus: Bus, conn: Any, topic: str) -> None:
    """A middleware that overrides nothing leaves messages as they are."""
    bus.use(Middleware())

    await bus.publish(conn, topic, "x")

    assert await _stamps(conn, topic) == [None]
