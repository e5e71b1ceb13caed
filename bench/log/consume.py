"""One group reads all messages, with a batch handler and a single handler, beside plain rows."""

from __future__ import annotations

import itertools
import time
from functools import partial

from bench.consume import Handling
from bench.lab import Lab
from bench.log import peer
from bench.log.filled import filled
from bench.log.groups import BATCHES, SINGLES, consume_all
from bench.log.publish import TOPIC
from bench.plan import BATCH, Plan
from bench.report import Report
from bench.rounds import alternate

_numbers = itertools.count(1)


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """In every round a new group reads from the beginning, and decodes the payloads."""
    count = 4 * plan.per_round
    async with filled(lab, count) as (dsn, conn):

        async def rows() -> float:
            began = time.perf_counter()
            await peer.read_rows(conn, batch=BATCH)
            return count / (time.perf_counter() - began)

        async def read(handling: Handling) -> float:
            return (await consume_all(dsn, TOPIC, [f"reader-{next(_numbers)}"], handling, count=count)).per_s

        rates = await alternate(
            {
                "consume_batch_handler_per_s": partial(read, BATCHES),
                "consume_single_handler_per_s": partial(read, SINGLES),
                "consume_keyset_select_per_s": rows,
            },
            rounds=plan.more_rounds(3),
        )
    report.add(**rates.medians())
    ratio = rates.ratio("consume_batch_handler_per_s", "consume_keyset_select_per_s")
    report.check("consume_batch_handler_to_keyset_select_ratio", ratio, ">=", 1.3)
