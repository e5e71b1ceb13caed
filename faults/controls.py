"""Builds with a mistake put in on purpose, and the check that must notice it: if it does not, the oracle is blind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from faults import cell, stage
from faults.catalogue import STREAMS
from faults.cell import Fault, Verdict
from faults.consumer import BARE_ID, BY_POSITION, FORGETFUL, NO_FENCE, NO_INBOX, NOTE_FIRST, SETTLE_FIRST
from faults.failpoint import DURING_SETTLEMENT
from faults.modes import MODES
from faults.servers.run import Servers
from faults.strikes import server, workers
from faults.world import World


@dataclass(frozen=True)
class Control:
    """A mistake, a fault that brings it to light, and the checks of which one must find it."""

    fault: Fault
    checks: tuple[str, ...]

    async def run(self, servers: Servers, seed: str) -> tuple[Verdict, bool]:
        """Whether the mistake is caught. Six times at most: whether a fault meets what it can hurt is chance."""
        for part in range(6):
            verdict = await cell.run(servers, self.fault, list(MODES.values()), f"{seed}.{part}")
            if any(one.check in self.checks for one in verdict.findings):
                return verdict, True
        return verdict, False


async def killed_soon_after_commit(world: World) -> None:
    """The server dies, with what it has said to be committed and has not written yet."""
    await asyncio.sleep(1)
    await server.postmaster_killed(world)


CONTROLS = [
    Control(
        Fault(
            "control: commits that do not wait for the disk",
            killed_soon_after_commit,
            settings={"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"},
            modes=("queue", "transactional"),
        ),
        ("LOST", "EFFECT"),
    ),
    Control(
        Fault(
            "control: a position is the last one read",
            workers.nothing,
            consumer={"control": BY_POSITION},
            modes=("log", "receipts"),
        ),
        ("LOST",),
    ),
    Control(
        Fault(
            "control: settlement before the effect",
            workers.killed_anywhere,
            consumer={"control": SETTLE_FIRST},
            modes=("queue", "log"),
        ),
        ("LOST",),
    ),
    Control(
        Fault(
            "control: settlement of pops before the effect",
            workers.killed_anywhere,
            consumer={"control": SETTLE_FIRST},
            modes=("pull",),
        ),
        ("LOST",),
    ),
    Control(
        Fault(
            "control: no fencing",
            workers.frozen,
            consumer={"control": NO_FENCE},
            modes=("transactional", "log-transactional"),
        ),
        ("EFFECT", "FENCE"),
    ),
    Control(
        Fault(
            "control: what is done ahead is forgotten",
            workers.stopped_again_and_again,
            consumer={"control": FORGETFUL, "uneven": 1},
            producer={"rate": 8.0},
            modes=("log", "receipts"),
        ),
        ("DUPLICATE",),
    ),
    Control(
        Fault(
            "control: no inbox",
            workers.killed_at(DURING_SETTLEMENT),
            consumer={"control": NO_INBOX},
            modes=("inbox",),
        ),
        ("EFFECT",),
    ),
    Control(
        Fault(
            "control: the inbox's note before the effect",
            workers.nothing,
            consumer={"control": NOTE_FIRST},
            modes=("inbox",),
        ),
        ("LOST",),
    ),
    *(
        Control(
            Fault(
                f"control: a stream knows messages by their bare ids, {name}",
                workers.nothing,
                stage.with_a_stream,
                consumer={"control": BARE_ID},
                modes=modes,
            ),
            ("LOST",),
        )
        for name, modes in STREAMS
    ),
]
