"""postbus bench: real figures of the user's server, and nothing is left there."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from cli.helpers import Cli, deliver, finish
from postbus import Bus
from support.eventually import eventually

_TOPICS = "select name from postbus.topic where name <> '*' order by name"
_LEFT = """
    select name from postbus.topic where name like 'bench.%'
     union all select nspname from pg_namespace where starts_with(nspname, 'postbus_bench_')
     union all select 'message ' || row_number() over () from postbus.queued
     union all select 'a segment' from postbus.segment
     union all select group_name from postbus.subscription where group_name = 'bench'
"""


async def nothing_is_left(conn: Any, *, messages: int = 0) -> None:
    """Neither topics with their groups nor a schema, and no messages but those of others."""
    assert [row["name"] for row in await conn.fetch(_LEFT)] == [f"message {n + 1}" for n in range(messages)]


async def test_figures_are_measured(cli: Cli, conn: Any) -> None:
    """All rows have all three ways; the ratios are those of the figures; what was measured with is gone."""
    result = (await cli("bench", "--seconds", "1", "--json")).done().json

    figures = result["figures"]
    assert list(figures) == ["publish_single_per_s", "publish_batch_per_s", "consume_per_s", "latency_p50_ms",
                             "latency_p99_ms"]  # fmt: skip
    for row in figures.values():
        assert all(row[way] > 0 for way in ("bare", "queue", "pub_sub"))
        for way in ("queue", "pub_sub"):
            assert row[f"{way}_to_bare"] == pytest.approx(row[way] / row["bare"], rel=0.01)
    for way in ("bare", "queue", "pub_sub"):
        assert figures["publish_single_per_s"][way] < figures["publish_batch_per_s"][way]
        assert figures["latency_p50_ms"][way] <= figures["latency_p99_ms"][way]
    assert (result["payload_bytes"], result["batch"], result["server"]["fsync"]) == (200, 1000, "on")
    assert result["seconds"] >= 1
    await nothing_is_left(conn)


@pytest.mark.usefixtures("events")
async def test_other_topics_are_not_touched(cli: Cli, bus: Bus, conn: Any) -> None:
    """Their messages wait as before; people get a table, and no bar where stderr is no terminal."""
    await bus.send("orders", {"id": 1})
    before = await bus.admin.topics()

    ended = (await cli("bench", "--seconds", "1")).done()

    assert ended.out.startswith("PostgreSQL ")
    assert re.search(r"consume: messages/s +[\d,]+ +[\d,]+ +[\d.]+ +[\d,]+ +[\d.]+$", ended.out, re.MULTILINE)
    assert ended.err == ""
    assert [(one.name, one.waiting, one.published) for one in await bus.admin.topics()] == [
        (one.name, one.waiting, one.published) for one in before
    ]
    await nothing_is_left(conn, messages=1)


_MOMENTS = {
    "created": "select exists (select from postbus.topic where name like 'bench.%')",
    "comparing": "select exists (select from pg_namespace where starts_with(nspname, 'postbus_bench_'))",
    "consuming": "select exists (select from postbus.subscription where group_name = 'bench')",
    "published": "select exists (select from postbus.queued)",
}


@pytest.mark.parametrize(
    ("moment", "number"),
    [*((moment, signal.SIGINT) for moment in _MOMENTS), ("consuming", signal.SIGTERM), ("published", signal.SIGHUP)],
)
async def test_interrupted_measurement_is_cleaned_up(cli: Cli, conn: Any, moment: str, number: signal.Signals) -> None:
    """Whatever it is at: as soon as its topics are there, or while it inserts rows, consumes or publishes."""
    process = await cli.start("bench", "--seconds", "10")

    async def is_reached() -> None:
        assert await conn.fetchval(_MOMENTS[moment])

    await eventually(is_reached, within=20)
    await deliver(process, number)

    ended = await finish(process)
    ended.failed(130)
    assert ended.err == ""
    await nothing_is_left(conn)


@pytest.fixture
async def login(conn: Any, dsn: str, roles: Callable[[str], str]) -> AsyncIterator[Callable[..., Any]]:
    """Makes the DSN of a user with roles of Postbus, who may do nothing else."""
    name = f"app_{secrets.token_hex(4)}"
    await conn.execute(f"create role {name} login")

    async def made(*given: str) -> str:
        for role in given:
            await conn.execute(f'grant "{roles(role)}" to {name}')
        url = urlsplit(dsn)
        return url._replace(netloc=f"{name}@{url.netloc.rpartition('@')[2]}").geturl()

    yield made
    await conn.execute(f"drop role {name}")


async def test_user_who_may_not_create_topics_is_refused(cli: Cli, conn: Any, login: Callable[..., Any]) -> None:
    """The error names the right that is missing."""
    cli.env["POSTBUS_DSN"] = await login("producer", "consumer")

    refused = (await cli("bench", "--seconds", "1")).failed(5)

    assert "create_topic" in refused.err
    assert "postbus_admin_" in refused.err
    await nothing_is_left(conn)


async def test_user_who_may_not_create_a_schema_gets_no_ratios(cli: Cli, conn: Any, login: Callable[..., Any]) -> None:
    """There is no plain table to compare with then; the topics are measured all the same."""
    cli.env["POSTBUS_DSN"] = await login("producer", "consumer", "admin")

    row = (await cli("bench", "--seconds", "1", "--json")).done().json["figures"]["consume_per_s"]

    assert row["queue"] > 0
    assert (row["bare"], row["queue_to_bare"]) == (None, None)
    await nothing_is_left(conn)


async def test_group_of_all_topics_gets_no_messages(cli: Cli, bus: Bus, conn: Any) -> None:
    """Nothing is measured beside it, and it has no topic more than before."""
    await bus.pop("#", group="audit", mode="new")

    refused = (await cli("bench", "--seconds", "1")).failed(4)

    assert "group audit has all topics" in refused.err
    assert [row["name"] for row in await conn.fetch(_TOPICS)] == []


@pytest.mark.parametrize("scenario", ["log", "lt7", "kill-and-resurrect", "all", "report"])
async def test_scenario_is_refused(cli: Cli, scenario: str) -> None:
    """The message says where the benchmarks are."""
    refused = (await cli.quick("bench", scenario)).failed(2)
    assert f"python -m bench {scenario}" in refused.err


@pytest.mark.parametrize("seconds", ["0", "nan", "61", "long"])
async def test_bad_length_is_refused(cli: Cli, seconds: str) -> None:
    """Before anything is measured."""
    (await cli.quick("bench", f"--seconds={seconds}")).failed(2)


async def test_server_that_is_away(cli: Cli) -> None:
    """The exit code is that of all commands."""
    away = await asyncio.wait_for(cli("bench", "--dsn", "postgresql://postgres@127.0.0.1:1/postgres"), 60)
    away.failed(5)
