"""A short selection of `make faults`, with a seed."""

from __future__ import annotations

import pytest

from faults import cell, report
from faults.catalogue import FAULTS, STREAMS, mix
from faults.modes import MODES, shifts
from faults.servers.run import Servers

CHOSEN = [
    "worker killed after putting off",
    "worker frozen",
    "postmaster killed",
    "connections cut during COMMIT",
    "failover to a standby",
]
BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.parametrize(
    ("name", "shift"), [*((name, 0) for name in CHOSEN), ("worker killed in handler", 1), ("postmaster killed", 1)]
)
async def test_nothing_is_lost_doubled_or_out_of_order_in_any_mode(
    servers: Servers, name: str, shift: int, seed: str
) -> None:
    """This holds whatever was in hand when the fault happened."""
    verdict = await cell.run(servers, BY_NAME[name], shifts(MODES.values())[shift], seed)
    assert verdict.is_green, report.line(verdict)
    assert verdict.messages > 100
    assert verdict.hurts > 0
    if name == "worker frozen":  # which takes longest
        assert verdict.dropped > 0, "nothing was dropped while it was needed, since nothing was dropped at all"


@pytest.mark.parametrize("name", [f"{name} into one stream" for name, _ in STREAMS])
async def test_shared_stream_stores_the_messages_of_all_routes(servers: Servers, name: str, seed: str) -> None:
    """This holds when relays are killed, and no message is stored twice, because the stream knows its messages."""
    verdict = await cell.run(servers, BY_NAME[name], list(MODES.values()), seed)
    assert verdict.is_green, report.line(verdict)
    assert verdict.messages > 100
    assert verdict.hurts > 0
    assert verdict.duplicates == 0


def test_streams_take_part_only_in_faults_that_name_them() -> None:
    """All other faults have enough modes."""
    streamed = {mode.name for mode in MODES.values() if mode.is_streamed}
    for fault in FAULTS:
        concerned = {name for name, mode in MODES.items() if fault.concerns(mode)}
        assert concerned == set(fault.modes) if fault.modes else concerned == MODES.keys() - streamed


def test_mix_is_the_same_for_the_same_seed() -> None:
    """Other seeds give other mixes."""
    assert mix("mix 1", "7.1").name == mix("mix 1", "7.1").name
    assert len({mix("mix", str(n)).name for n in range(20)}) > 10


def test_every_fault_has_a_name_of_its_own() -> None:
    """A fault is selected by its name."""
    assert len(BY_NAME) == len(FAULTS)
