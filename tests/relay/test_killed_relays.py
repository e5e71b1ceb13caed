"""Relays that are killed, and sinks that go away under them: nothing is lost, and order per key stays."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.helpers import finish, start
from postbus import Bus
from postbus.inbox import Inbox
from relay.sinks_at_work import TOPIC, AtWork, all_at_work
from support.eventually import eventually
from support.grouping import create_log, group_row, in_order, is_through, publish_numbers

MESSAGES = int(os.environ.get("POSTBUS_RELAY_MESSAGES", "1000"))
KEYS = 40
WITHIN = 30 + MESSAGES / 100
REPEATED_BY_A_FAULT = 2000  # at most: messages that were read and not yet confirmed


def settings(sinks: list[AtWork]) -> str:
    """Return a file with a route to each sink."""
    lines = []
    for one in sinks:
        lines += [f"[sinks.{one.name}]", f'url = "{one.url}"', one.options]
        lines += ["[[routes]]", f'topic = "{TOPIC}"', f'sink = "{one.name}"']
    return "\n".join(lines)


async def relay(dsn: str, config: Path) -> asyncio.subprocess.Process:
    options = ("--config", str(config), "--log-level", "error")
    return await start("relay", "run", *options, env={"POSTBUS_DSN": dsn})


async def all_have(conn: Any, sinks: list[AtWork], count: int) -> None:
    """Wait until each relay has passed this many messages."""

    async def past() -> None:
        for one in sinks:
            assert (await group_row(conn, f"relay-{one.name}", TOPIC))["passed"] >= count, one.name

    await eventually(past, within=WITHIN)


@pytest.mark.timeout(120 + 2 * WITHIN)
async def test_killed_relays_and_sinks_lose_nothing(
    dsn: str, empty_dsn: str, bus: Bus, conn: Any, tmp_path: Path
) -> None:
    """The relay to seven sinks is killed, then the servers, and another relay goes on.

    All messages arrive, those of a key in order once duplicates are removed, and no more are repeated than were under
    way. Behind the inbox none comes twice.
    """
    await create_log(bus, TOPIC, lanes=4)
    async with all_at_work(empty_dsn) as sinks:
        config = tmp_path / "relay.toml"
        config.write_text(settings(sinks))
        await publish_numbers(bus, range(MESSAGES // 2), TOPIC, keys=KEYS, at_once=50)
        killed = await relay(dsn, config)
        await all_have(conn, sinks, MESSAGES // 8)
        killed.send_signal(signal.SIGKILL)
        await killed.wait()
        others = [await relay(dsn, config), await relay(dsn, config)]
        publishing = asyncio.create_task(
            publish_numbers(bus, range(MESSAGES // 2, MESSAGES), TOPIC, keys=KEYS, at_once=50)
        )
        await all_have(conn, sinks, MESSAGES // 2)
        mortal = [one.server for one in sinks if one.server is not None]
        await asyncio.gather(*(one.kill() for one in mortal))
        await publishing
        await asyncio.gather(*(one.start() for one in mortal))
        for one in sinks:
            await is_through(conn, f"relay-{one.name}", TOPIC, within=WITHIN, passed=MESSAGES, dead=0)
        for process in others:
            process.terminate()
            assert (await finish(process)).done()

        arrived = [(one, await one.numbers(MESSAGES)) for one in sinks]
    assert not [problem for one, got in arrived for problem in wrong_with(one, got)]
    assert len(sinks) >= 5
    for one, got in arrived:
        assert sorted(await effects(conn, one.name, got)) == list(range(MESSAGES)), f"{one.name}, after the inbox"


async def effects(conn: Any, consumer: str, got: list[int]) -> list[int]:
    """Return the effects of a sink's consumer that asks the inbox first."""
    done: list[int] = []
    for place in range(0, len(got), 500):
        batch = got[place : place + 500]
        async with conn.transaction(), Inbox().once_many(conn, consumer, batch) as first:
            done += [number for number, is_first in zip(batch, first, strict=True) if is_first]
    return done


def wrong_with(sink: AtWork, got: list[int]) -> list[str]:
    """Return what a sink has too much, or lacks."""
    found = []
    if set(got) != set(range(MESSAGES)):
        found.append(f"{sink.name} lacks {sorted(set(range(MESSAGES)) - set(got))[:5]}")
    if not in_order(got, KEYS):
        found.append(f"{sink.name} has messages of a key out of order")
    repeated = len(got) - len(set(got))
    if repeated > (0 if sink.knows_duplicates else 2 * REPEATED_BY_A_FAULT):
        found.append(f"{sink.name} has {repeated} messages twice")
    return found
