"""One run: traffic, a fault in the middle of it, and the judgement."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.modes import Mode
from faults.oracle import Finding, judge
from faults.servers import NotInstalled
from faults.servers.run import Servers
from faults.stage import Stage, directly
from faults.world import Unsettled, World

_CONSUMERS = 2  # in all databases together
_PRODUCERS = 2
_WARM = 100  # messages, before anything happens
_LIVE_WITHIN = 45.0
_LONGEST_STRIKE = 90.0

Strike = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """Something that is done while messages flow."""

    name: str
    strike: Strike
    stage: Stage = directly
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of PostgreSQL."""
    topics: Mapping[str, Any] = field(default_factory=dict)
    """Options of all topics."""
    producer: Mapping[str, object] = field(default_factory=dict)
    consumer: Mapping[str, object] = field(default_factory=dict)
    kills: bool = False
    """Consumers die by themselves, and are replaced."""
    modes: tuple[str, ...] = ()
    """Those that it concerns; none: all but those that need a stream."""

    def concerns(self, mode: Mode) -> bool:
        return mode.name in self.modes if self.modes else not mode.is_streamed


@dataclass
class Verdict:
    """How a run ended."""

    fault: str
    modes: Sequence[Mode]
    seed: str
    findings: list[Finding] = field(default_factory=list)
    absent: str = ""
    """Why it could not be run."""
    messages: int = 0
    duplicates: int = 0
    hurts: int = 0
    dropped: int = 0
    """Leaves of the log."""
    seconds: float = 0.0
    settled_after: float = 0.0

    def of(self, mode: str) -> list[Finding]:
        return [one for one in self.findings if one.mode in ("", mode)]

    @property
    def is_green(self) -> bool:
        return not self.findings and not self.absent


async def run(servers: Servers, fault: Fault, modes: Sequence[Mode], seed: str, *, keep: Path | None = None) -> Verdict:
    """Run a fault. `keep` is a folder for the files of a run that is not green."""
    chosen = [mode for mode in modes if fault.concerns(mode)]
    verdict = Verdict(fault.name, chosen, seed)
    folder = Path(tempfile.mkdtemp(prefix="postbus-journals-"))
    began = time.monotonic()
    try:
        await _run(servers, fault, chosen, seed, folder, verdict)
    except NotInstalled as absence:
        verdict.absent = str(absence)
    except Exception as error:  # the others go on
        verdict.findings.append(Finding("LIVE", "", f"the run itself failed: {type(error).__name__}: {error}"))
    finally:
        verdict.seconds = time.monotonic() - began
        if keep is not None and verdict.findings:
            shutil.copytree(folder, keep / f"{fault.name.replace(' ', '-')}-{seed}", dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


async def _run(
    servers: Servers, fault: Fault, modes: Sequence[Mode], seed: str, folder: Path, verdict: Verdict
) -> None:
    async with fault.stage(servers, fault.settings) as scene:
        world = World(scene, folder, modes, seed)
        async with world.reader.reading() if world.reader else nullcontext():
            await _play(world, fault, verdict)


async def _play(world: World, fault: Fault, verdict: Verdict) -> None:
    try:
        await world.prepare(fault.topics)
        world.consumer_options = fault.consumer
        for database in world.databases:
            for _ in range(_CONSUMERS // len(world.databases)):
                world.start_consumer(database, **fault.consumer)
            for _ in range(_PRODUCERS // len(world.databases)):
                world.start_producer(database, **fault.producer)
        keeping_up = asyncio.create_task(world.replace_the_dead()) if fault.kills else None
        try:
            await world.flows(_WARM)
            async with asyncio.timeout(_LONGEST_STRIKE):
                await fault.strike(world)
            await world.flows()
        except NotInstalled:
            raise
        except Exception as error:  # judge what there is all the same
            verdict.findings.append(Finding("LIVE", "", f"during the fault: {type(error).__name__}: {error}"))
        wrongs = await world.stop_producers()
        try:
            verdict.settled_after = await world.settles(_LIVE_WITHIN)
        except Unsettled as error:
            wrongs.append(str(error))
            await world.tell_what_is_left()
        if keeping_up is not None:
            keeping_up.cancel()
        wrongs += await world.stop_consumers()
        verdict.findings += [Finding("LIVE", "", wrong) for wrong in wrongs]
        story = world.story()
        facts = await world.facts()
        verdict.findings += judge(story, facts)
        verdict.dropped = facts.dropped
        verdict.messages = sum(len(messages) for messages in story.tried.values())
        verdict.duplicates = story.duplicates
        verdict.hurts = story.faults
    finally:
        world.close()
        if verdict.findings:
            shutil.copy(world.server.log, world.folder / "postgres.log")
