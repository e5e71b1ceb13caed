"""The sizes and lengths of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from bench.points import Points

MINUTES = 20
"""Minutes on the timeline of a group that is killed and comes back."""
DAYS = 18
"""Days on the timeline of the partitions."""
BATCH = 1000
"""Messages per call of publish_many, and per bulk insert beside it."""


@dataclass(frozen=True)
class Plan:
    """The sizes of a run. The defaults are those of the long form."""

    messages: int = 1_000_000
    """Messages in the large backlog; they are drained while memory is watched."""
    per_round: int = 50_000
    """Messages that are published in bulk, or drained, per round."""
    few: int = 10_000
    """Messages in the small backlog."""
    singles: int = 2_000
    """Messages that are published one by one, per round."""
    rounds: int = 5
    """How often each measurement is repeated, by turns with those that it is compared with."""
    latency_seconds: float = 20.0
    """Seconds for which latency is measured."""
    old_seconds: float = 300.0
    """The age of the old transaction, in seconds, when draining beside it is measured."""
    log_messages: int = 5_000_000
    """Messages in the large backlog of the log."""
    log_old_seconds: float = 600.0
    """The age of the old transaction, in seconds, when reading the log beside it is measured."""
    topics: int = 10_000
    groups: int = 1_000
    """Idle topics and groups in one process."""
    load_seconds: float = 60.0
    """Seconds of a load test."""
    lanes: int = 1
    """Lanes of its topic. Each step of a group writes this many cursors."""
    history: int = 5_000_000
    """Messages that are there before the late group subscribes."""
    history_rate: float = 200_000.0
    """The most messages per second that it may read."""
    catch_up_seconds: float = 180.0
    """Seconds after which the run no longer waits for the catch-up."""
    minute: float = 4.0
    """Seconds that stand for a minute on the timeline of the killed group."""
    isolation_seconds: float = 60.0
    """Seconds for which a quiet topic is watched, alone and beside a noisy one."""
    day: float = 3.5
    """Seconds that stand for a day on the timeline of the partitions."""
    day_rate: int = 10_000
    """Messages per second on that timeline."""
    named_lanes: int = 100_000
    """Lanes in which a topic has had messages …"""
    active_lanes: int = 1_000
    """… of which this many have some at the same time …"""
    per_lane: int = 20
    """… and each of them this many, per round."""
    points: Points = field(default_factory=Points)
    """The points of the curves."""
    peer_rounds: int = 3
    """How often each system is measured, by turns with the others."""
    peer_seconds: float = 1.0
    """Seconds for which it publishes, per round."""
    peer_messages: int = 30_000
    """Messages that it drains, per round; slow systems drain a part of them."""
    peer_latency_seconds: float = 3.0
    """Seconds for which its latency is measured, per turn."""
    polls: int = 1_000
    """Polls that wait on an HTTP server at the same time."""
    peers_at_once: bool = False
    """Whether all systems are measured at the same time. That shows that they work, not how fast they are."""

    def more_rounds(self, times: int) -> int:
        """The rounds of a measurement that is short, or whose ratio needs many of them."""
        return times * self.rounds if self.rounds > 1 else 1

    @classmethod
    def quick(cls) -> Self:
        """A few seconds for each part. That shows that it works, not how fast it is."""
        return cls(messages=10_000, per_round=3_000, few=1_000, singles=100, rounds=1,
                   latency_seconds=0.3, old_seconds=0.3, log_messages=10_000, log_old_seconds=0.3, topics=50, groups=20,
                   load_seconds=8.0, history=20_000, history_rate=10_000.0, catch_up_seconds=4.0,
                   minute=1.0, isolation_seconds=2.0, named_lanes=2_000, active_lanes=50, per_lane=5,
                   day=0.7, day_rate=2_000, points=Points.quick(),
                   peer_rounds=1, peer_seconds=0.05, peer_messages=400, peer_latency_seconds=0.1,
                   polls=50, peers_at_once=True)  # fmt: skip

    @classmethod
    def short(cls) -> Self:
        """The same measurements, at sizes that let all scenarios together end within half an hour."""
        return cls(messages=200_000, singles=1_000, rounds=3, latency_seconds=8.0, old_seconds=45.0,
                   log_messages=1_000_000, log_old_seconds=60.0, load_seconds=20.0, history=4_000_000,
                   catch_up_seconds=140.0, minute=3.0, isolation_seconds=40.0, day=2.5, per_lane=10,
                   points=Points.short(), peer_rounds=2, peer_seconds=0.7, peer_messages=20_000,
                   peer_latency_seconds=3.0)  # fmt: skip

    def changed(self, *, messages: int | None = None, seconds: float | None = None, lanes: int | None = None) -> Self:
        """The plan with another size of the backlog, other lengths of time, or more lanes."""
        plan = self if lanes is None else replace(self, lanes=lanes)
        if messages is not None:
            plan = replace(plan, messages=messages, per_round=max(messages // 20, 1), few=max(messages // 100, 1),
                           log_messages=messages, history=messages, points=plan.points.up_to(messages))  # fmt: skip
        if seconds is not None:
            plan = replace(plan, old_seconds=seconds, log_old_seconds=seconds, load_seconds=seconds,
                           catch_up_seconds=seconds, minute=seconds / MINUTES, isolation_seconds=seconds,
                           day=seconds / DAYS)  # fmt: skip
        return plan
