"""The HTTP server: pushing, popping, and a thousand waiting polls."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from bench.http import polls, throughput
from bench.lab import Lab
from bench.report import Report
from bench.scenario import Scenario


class _Http(Scenario):
    @contextlib.asynccontextmanager
    async def workspace(self, lab: Lab, report: Report) -> AsyncIterator[throughput.Clients]:
        """A server for all parts but the polls, which need one of their own."""
        async with throughput.clients_of_server(lab) as clients:
            yield clients


SCENARIO = _Http(
    "http",
    {
        "push batches": throughput.measure_push,
        "pop batches": throughput.measure_pop,
        "one by one": throughput.measure_single,
        "waiting polls": polls.measure,
    },
    lambda plan: {
        "connections": throughput.CONNECTIONS,
        "push_batch": throughput.PUSH_BATCH,
        "pop_batch": throughput.POP_BATCH,
        "polls": plan.polls,
        "messages_per_round": plan.per_round,
        "rounds": plan.rounds,
    },
)
