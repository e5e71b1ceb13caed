"""Postbus beside other systems, inside and outside PostgreSQL, each used in the way that its authors recommend."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from statistics import quantiles
from typing import Any

from bench import load
from bench.lab import Lab
from bench.peers import rows
from bench.peers.available import BROKERS, LOG, ORDER, RIVALS, Available, open_systems
from bench.peers.system import System
from bench.plan import Plan
from bench.report import Report
from bench.rounds import Rates, alternate, at_once
from bench.scenario import Scenario

_TURNS = 2
_LATE = 100.0
"""No turn begins after this many seconds: on a busy machine one takes minutes, since no system keeps the pace."""
_MOST_GIVEN = 20_000

_MEANINGS = {
    "publish_single_1_connection": "messages/s, each in a durable commit of its own, by one connection",
    "publish_single_16_connections": "the same by 16 connections of one process",
    "publish_batches_of_100": "messages/s, 100 at a time, durable together, by one connection",
    "drain": "messages/s that one process takes, decodes and acknowledges, from its first until it has ended",
    "ten_groups_one_process": "deliveries/s to ten groups that get all messages, in one process",
    "ten_groups_two_processes": "the same in two processes, five groups in each",
    "latency": f"ms from the call that publishes to the handler, {rows.RATE} messages/s, one per commit, two processes",
    "ratios": "above 1 Postbus is ahead, also of latencies; each with what of Postbus is most like the peer",
}

_Work = Callable[[System], Coroutine[Any, Any, float]]


_COLUMNS = {
    "publish": "publish_single_1_connection_{}_per_s",
    "publish by 16": "publish_single_16_connections_{}_per_s",
    "by 100": "publish_batches_of_100_{}_per_s",
    "drain": "drain_{}_per_s",
    "10 groups": "ten_groups_one_process_{}_deliveries_per_s",
    "in 2 processes": "ten_groups_two_processes_{}_deliveries_per_s",
    "p50 ms": "latency_{}_p50_ms",
    "p99 ms": "latency_{}_p99_ms",
}


class _Beside(Scenario):
    def summary(self, report: Report) -> dict[str, dict[str, float]]:
        """A line for each system."""
        figures = report.figures
        lines = {
            name: {title: figures[key.format(name)] for title, key in _COLUMNS.items() if key.format(name) in figures}
            for name in ORDER
        }
        return {name: line for name, line in lines.items() if line}

    @contextlib.asynccontextmanager
    async def workspace(self, lab: Lab, report: Report) -> AsyncIterator[Available]:
        """All systems that are here, on their servers."""
        async with open_systems(lab) as found:
            report.settings.update({f"row_{name}": meaning for name, meaning in _MEANINGS.items()})
            report.settings.update({f"version_{name}": version for name, version in found.versions.items()})
            report.settings.update({f"absent_{name}": reason for name, reason in found.absent.items()})
            yield found


async def _by_turns(found: Available, plan: Plan, report: Report, *, row: str, unit: str, work: _Work) -> None:
    """Measure all systems that support it, and compare."""
    able = [one for one in found.systems.values() if one.has_groups or not row.startswith("ten_groups")]
    names = {one.name: f"{row}_{one.name}_{unit}" for one in able}
    measures = {names[one.name]: partial(work, one) for one in able}
    rates = await (at_once(measures) if plan.peers_at_once else alternate(measures, rounds=plan.peer_rounds))
    report.add(**rates.medians())
    for peer, ours in (RIVALS | BROKERS).items():
        if peer in names:
            _compare(report, f"{row}_postbus_to_{peer}_ratio", peer, _ratio(rates, names, row, peer, ours))


def _ratio(rates: Rates, names: dict[str, str], row: str, peer: str, ours: str) -> float:
    if row.startswith("ten_groups") and ours not in names:
        ours = LOG
    return rates.ratio(names[ours], names[peer])


def _compare(report: Report, name: str, peer: str, ratio: float) -> None:
    """Postbus has to be ahead of the other systems inside PostgreSQL. For brokers there are ratios, but no goals."""
    if peer in RIVALS:
        report.check(name, ratio, ">=", 1)
    else:
        report.add(**{name: ratio})


def _count(system: System, plan: Plan) -> int:
    return max(int(plan.peer_messages * system.share), 60)


async def _singles(found: Available, plan: Plan, report: Report, *, connections: int, row: str) -> None:
    work = partial(rows.publish_singles, connections=connections, seconds=plan.peer_seconds)
    await _by_turns(found, plan, report, row=row, unit="per_s", work=work)


async def _batches(found: Available, plan: Plan, report: Report) -> None:
    work = partial(rows.publish_batches, seconds=plan.peer_seconds)
    await _by_turns(found, plan, report, row="publish_batches_of_100", unit="per_s", work=work)


async def _drain(found: Available, plan: Plan, report: Report) -> None:
    given = load.payloads(min(4 * plan.peer_messages, _MOST_GIVEN))
    report.settings["messages_drained"] = {name: _count(one, plan) for name, one in found.systems.items()}

    async def work(system: System) -> float:
        return await rows.drain(system, given, _count(system, plan))

    await _by_turns(found, plan, report, row="drain", unit="per_s", work=work)


async def _ten_groups(found: Available, plan: Plan, report: Report, *, processes: int, row: str) -> None:
    given = load.payloads(min(4 * plan.peer_messages, _MOST_GIVEN))

    async def work(system: System) -> float:
        # Each message is delivered ten times.
        return await rows.fan_out(system, given, _count(system, plan) // 3, processes, found.helpers)

    await _by_turns(found, plan, report, row=row, unit="deliveries_per_s", work=work)


async def _latency(found: Available, plan: Plan, report: Report) -> None:
    times: dict[str, list[int]] = {name: [] for name in found.systems}

    async def turn(name: str, system: System) -> None:
        try:
            times[name] += await rows.latencies(system, plan.peer_latency_seconds, found.helpers)
        except TimeoutError:
            report.settings[f"absent_latency_{name}"] = f"it is minutes behind at {rows.RATE} messages/s"

    began = time.monotonic()
    for number in range(min(_TURNS, plan.peer_rounds)):
        if time.monotonic() - began > _LATE:
            break
        report.settings["latency_turns"] = number + 1
        if plan.peers_at_once:
            await asyncio.gather(*(turn(*one) for one in found.systems.items()))
        else:
            for one in found.systems.items():
                await turn(*one)
    for percent, word in ((49, "p50"), (98, "p99")):
        ms = {name: quantiles(many, n=100, method="inclusive")[percent] / 1e6 for name, many in times.items() if many}
        report.add(**{f"latency_{name}_{word}_ms": value for name, value in ms.items()})
        for peer, ours in (RIVALS | BROKERS).items():
            if peer in ms:
                _compare(report, f"latency_{word}_postbus_to_{peer}_speed_ratio", peer, ms[peer] / ms[ours])


SCENARIO = _Beside(
    "peers",
    {
        "publish, 1 connection": partial(_singles, connections=1, row="publish_single_1_connection"),
        "publish, 16 connections": partial(_singles, connections=16, row="publish_single_16_connections"),
        "publish in batches": _batches,
        "drain": _drain,
        "ten groups, one process": partial(_ten_groups, processes=1, row="ten_groups_one_process"),
        "ten groups, two processes": partial(_ten_groups, processes=2, row="ten_groups_two_processes"),
        "latency": _latency,
    },
    lambda plan: {
        "payload_entropy_bits_per_byte": round(load.entropy(load.payloads(1000)), 2),
        "rounds": plan.peer_rounds,
        "publish_seconds": plan.peer_seconds,
        "latency_seconds": plan.peer_latency_seconds,
    },
)
