"""Named lanes: pops find the thousand lanes with work among a hundred thousand, and serve all of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from bench import load
from bench.lab import Lab, connection
from bench.plan import Plan
from bench.reads import percentile_ms
from bench.report import Report
from bench.rounds import alternate
from bench.scenario import Scenario
from postbus import Bus, Start

_TOPIC, _GROUP = "lanes", "g"
_CONNECTIONS = 8
_BATCH = 100
_PUBLISH = "select postbus.publish_many($1, $2::bytea[], keys => $3::text[])"
# Without waiting for the disk, like bus.pop: a pop that a crash undoes is repeated.
_POP = "select *, set_config('synchronous_commit', 'off', true) from postbus.pop($1, $2, 'bench', $3, scan_floor => $4)"


class _Topic:
    """A topic with named lanes and a group that pops, in a database of its own."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._floor: str | None = None
        self.pops: list[float] = []
        """The seconds of each pop that found messages."""

    async def publish(self, lanes: range, each: int) -> None:
        """Publish to the lanes by turns."""
        keys = [f"lane-{number}" for _ in range(each) for number in lanes]
        payloads = [load.encode(payload) for payload in load.payloads(1000)]
        async with connection(self._dsn) as conn:
            for start in range(0, len(keys), 1000):
                some = keys[start : start + 1000]
                await conn.execute(_PUBLISH, _TOPIC, payloads[: len(some)], some)

    async def pop(self, conn: Any, batch: int) -> list[str]:
        """Pop and ack once. Returns the lanes of the messages."""
        began = time.perf_counter()
        *found, last = await conn.fetch(_POP, _TOPIC, _GROUP, batch, self._floor)
        self._floor = last["next_scan_floor"]
        if not found:
            return []
        self.pops.append(time.perf_counter() - began)
        await conn.execute("select postbus.ack($1, $2)", found[0]["token"], found[0]["ids"])
        keys: list[str] = found[0]["keys"]
        return keys

    async def drain(self, batch: int = _BATCH) -> int:
        """Pop by several connections until nothing is left. Returns the number of messages."""
        done = await asyncio.gather(*(self._drain(batch) for _ in range(_CONNECTIONS)))
        return sum(done)

    async def _drain(self, batch: int) -> int:
        count = empty = 0
        async with connection(self._dsn) as conn:
            while empty < 3:  # others may have leased the rest, or be about to publish more
                if lanes := await self.pop(conn, batch):
                    count, empty = count + len(lanes), 0
                else:
                    empty += 1
                    await asyncio.sleep(0.01)
        return count

    async def serve(self, pops: int) -> Counter[str]:
        """Pop one message at a time. Returns how often each lane was served."""
        served: Counter[str] = Counter()
        async with connection(self._dsn) as conn:
            for _ in range(pops):
                served.update(await self.pop(conn, 1))
        return served


@contextlib.asynccontextmanager
async def _topic(lab: Lab, lanes: int) -> AsyncIterator[_Topic]:
    """A topic in which each lane has had a message, and none has one now."""
    async with lab.database() as dsn:
        async with Bus.open(dsn) as bus:
            await bus.admin.create_topic(_TOPIC, semantics="PUB_SUB", lanes="named", tracking="OFFSET_WATERMARK")
            await (await bus.connect()).subscribe(_TOPIC, _GROUP, Start.NOW, "block")
        topic = _Topic(dsn)
        await topic.publish(range(lanes), 1)
        if (had := await topic.drain(1000)) != lanes:
            raise AssertionError(f"{had} of {lanes} messages were popped")
        async with connection(dsn) as conn:
            await conn.execute("vacuum analyze postbus.deferred")
        yield topic


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure work in a few of many lanes, beside the same work in a topic that has only these few."""
    active = range(plan.active_lanes)
    async with _topic(lab, plan.named_lanes) as many, _topic(lab, plan.active_lanes) as few:

        async def drained(topic: _Topic) -> float:
            await topic.publish(active, plan.per_lane)
            topic.pops.clear()
            gc.collect()
            began = time.perf_counter()
            count = await topic.drain()
            report.add(lost_messages=report.figures.get("lost_messages", 0) + len(active) * plan.per_lane - count)
            return count / (time.perf_counter() - began)

        rates = await alternate({"many": lambda: drained(many), "few": lambda: drained(few)}, rounds=plan.rounds)
        report.add(
            lanes=plan.named_lanes,
            active_lanes=plan.active_lanes,
            pop_and_ack_many_lanes_per_s=rates.median("many"),
            pop_and_ack_few_lanes_per_s=rates.median("few"),
            pop_batch_p50_ms=percentile_ms(many.pops, 0.5),
            pop_batch_p95_ms=percentile_ms(many.pops, 0.95),
        )
        await many.publish(active, 3)
        many.pops.clear()
        served = await many.serve(2 * len(active))
        await many.drain()
    turns = [served[f"lane-{number}"] for number in active]
    report.add(
        pop_single_p50_ms=percentile_ms(many.pops, 0.5),
        pop_single_p95_ms=percentile_ms(many.pops, 0.95),
        least_turns_of_a_lane=min(turns),
        most_turns_of_a_lane=max(turns),
    )
    report.check("many_to_few_lanes_ratio", rates.ratio("many", "few"), ">=", 0.8)
    report.check("most_to_least_turns_of_a_lane", max(turns) - min(turns), "<", 2)
    report.check("lost_messages", report.figures["lost_messages"], "<", 1)


def _settings(plan: Plan) -> dict[str, Any]:
    return {"connections": _CONNECTIONS, "batch": _BATCH, "messages_per_lane": plan.per_lane, "rounds": plan.rounds}


SCENARIO = Scenario("lanes", {"lanes": measure}, _settings)
