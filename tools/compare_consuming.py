"""Compares publishing, popping and consuming with another commit, in one run.

    python tools/compare_consuming.py [--commit 9a9b2e5] [--messages 200000] [--failing 0.05] [--rounds 6]

Both commits get a database of their own in one embedded server, with the same messages, and take turns. In each round
new groups read all messages: one with a batch handler and one with a handler for single messages. Two more read a
tenth of them, and their handlers fail for some messages the first time. Then messages are published one by one, each in
a transaction of its own, and popped and acknowledged one by one: from a queue, and for a group.
Prints one JSON object with the medians of the ratios; exits 0 only if none is below the goal.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import secrets
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg

from postbus import Ack, Bus, Message, Outcome, PopOptions, Retry, Start
from postbus.embedded import EmbeddedPostgres

_ROOT = Path(__file__).parent.parent
_GOAL = 0.97
_TOPIC = "orders"
_PUBLISHED = 500  # messages per call
_CONSUMED = ("batches", "singles", "failing_batches", "failing_singles")
_ONE_BY_ONE = ("publish", "pop_queue", "pop_group")
_WAYS = _CONSUMED + _ONE_BY_ONE


async def load(dsn: str, messages: int) -> None:
    """Fill a database with the code that is imported, whichever that is."""
    async with Bus.open(dsn, migrate=True) as bus:
        await bus.admin.create_topic(_TOPIC, semantics="PUB_SUB", retry_initial="0 s", retry_max="0 s")
        for first in range(0, messages, _PUBLISHED):
            orders = [{"id": n, "customer": "c" * 40, "total": n * 1.5} for n in range(first, first + _PUBLISHED)]
            await bus.send_many(_TOPIC, orders)


async def consume(dsn: str, way: str, messages: int, failing: float) -> float:
    """Messages per second, from the first call of the handler to the last message that is done."""
    every = 0
    if way.startswith("failing"):
        every, messages = round(1 / failing), messages // 10
    done, began = 0, 0.0
    is_through = asyncio.Event()

    def outcome_of(message: Message) -> Outcome:
        nonlocal done, began
        began = began or time.monotonic()
        if every and message.id % every == 0 and message.attempt == 1:
            return Retry(delay=0)
        done += 1
        if done == messages:
            is_through.set()
        return Ack()

    async def one(order: dict[str, Any], message: Message) -> Outcome:
        return outcome_of(message)

    async def many(orders: list[dict[str, Any]], several: list[Message]) -> Sequence[Outcome]:
        return [outcome_of(message) for message in several]

    async with Bus.open(dsn) as bus:
        name = f"g{secrets.token_hex(4)}"
        if way.endswith("batches"):
            bus.subscribe(_TOPIC, group=name, batch=500, start=Start.BEGINNING)(many)
        else:
            bus.subscribe(_TOPIC, group=name, concurrency=10, start=Start.BEGINNING)(one)
        worker = asyncio.create_task(bus.run())
        await asyncio.wait({worker, asyncio.create_task(is_through.wait())}, return_when=asyncio.FIRST_COMPLETED)
        took = time.monotonic() - began
        bus.stop()
        await worker
        await bus.admin.remove_group(_TOPIC, name)
    return messages / took


async def one_by_one(dsn: str, way: str, messages: int) -> float:
    """Messages per second, each published in a transaction of its own, or popped and acknowledged."""
    orders = [{"id": n, "customer": "c" * 40, "total": n * 1.5} for n in range(messages // 40)]
    topic = f"t{secrets.token_hex(4)}"
    options: PopOptions = {"group": "g"} if way == "pop_group" else {}
    async with Bus.open(dsn) as bus:
        await bus.admin.create_topic(topic, semantics="PUB_SUB" if options else "QUEUE")
        if options:
            await bus.pop(topic, **options)  # subscribes the group
        if way != "publish":
            await bus.send_many(topic, orders)
        conn: Any = await asyncpg.connect(dsn)
        began = time.monotonic()
        for order in orders:
            if way == "publish":
                async with conn.transaction():
                    await bus.publish(conn, topic, order)
            else:
                popped = await bus.pop(topic, **options)
                await popped.ack()
        took = time.monotonic() - began
        await conn.close()
        await bus.admin.delete_topic(topic, force=True)
    return len(orders) / took


def by_turns(given: argparse.Namespace, sources: dict[str, Path], postgres: EmbeddedPostgres) -> dict[str, Any]:
    """The rates of all rounds, by way and source."""

    def run(source: str, *args: str) -> str:
        command = [sys.executable, __file__, "--dsn", postgres.dsn(source), "--messages", str(given.messages)]
        environment = os.environ | {"PYTHONPATH": str(sources[source])}
        told = subprocess.run(
            [*command, "--failing", str(given.failing), *args], check=True, env=environment, stdout=subprocess.PIPE
        )
        return told.stdout.decode()

    for source in sources:
        run(source, "--load")
    rates: dict[str, dict[str, list[float]]] = {way: {source: [] for source in sources} for way in _WAYS}
    for number in range(given.rounds):
        for way in _WAYS:
            for source in sources if number % 2 == 0 else reversed(sources):
                rates[way][source].append(float(run(source, "--consume", way)))
    return rates


async def _make_databases(postgres: EmbeddedPostgres, names: Sequence[str]) -> None:
    conn: Any = await asyncpg.connect(postgres.dsn())
    for name in names:
        await conn.execute(f"create database {name}")
    await conn.close()


def compare(given: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        archive = subprocess.run(
            ["git", "archive", given.commit, "src"], cwd=_ROOT, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        sources = {"before": Path(folder) / "src", "now": _ROOT / "src"}
        with EmbeddedPostgres.start(Path(folder) / "server") as postgres:
            asyncio.run(_make_databases(postgres, list(sources)))
            by_way = by_turns(given, sources, postgres)
    ratios = {
        way: median(now / before for before, now in zip(of_way["before"], of_way["now"], strict=True))
        for way, of_way in by_way.items()
    }
    figures = {
        f"{way}_{source}_per_s": median(rates) for way, of_way in by_way.items() for source, rates in of_way.items()
    }
    checks = [
        {"name": way, "value": ratio, "goal": f">= {_GOAL}", "ok": ratio >= _GOAL} for way, ratio in ratios.items()
    ]
    names = ("commit", "messages", "failing", "rounds")
    settings = {name: getattr(given, name) for name in names}
    report = {"scenario": "consuming", "settings": settings, "figures": figures, "checks": checks}
    print(json.dumps(report, indent=2))
    return all(ratio >= _GOAL for ratio in ratios.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="9a9b2e5")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--failing", type=float, default=0.05, help="the share of messages that fail once")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--consume", choices=_WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        asyncio.run(load(given.dsn, given.messages))
    elif given.consume:
        if given.consume in _ONE_BY_ONE:
            print(asyncio.run(one_by_one(given.dsn, given.consume, given.messages)))
        else:
            print(asyncio.run(consume(given.dsn, given.consume, given.messages, given.failing)))
    else:
        return 0 if compare(given) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
