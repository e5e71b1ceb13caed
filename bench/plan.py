"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from bench.points import Points

MINUTES = 20
"""That the story of a group takes which is killed and comes back."""
DAYS = 18
"""That partitions come and go in."""
BATCH = 1000
"""Messages per call of publish_many, and per bulk insert beside it."""


@dataclass(frozen=True)
class Plan:
    """The sizes of a run. The defaults are those of a full one."""

    messages: int = 1_000_000
    """Waiting in the large backlog, and drained while memory is watched."""
    per_round: int = 50_000
    """Published in bulk, or drained, per round."""
    few: int = 10_000
    """Waiting in the small backlog."""
    singles: int = 2_000
    """Published one by one, per round."""
    rounds: int = 5
    """How often each measurement is made, alternating with those it is compared to."""
    latency_seconds: float = 20.0
    """How long latency is measured."""
    old_seconds: float = 300.0
    """How long a transaction has been open before draining beside it is measured."""
    log_messages: int = 5_000_000
    """Waiting in the large backlog of the log."""
    log_old_seconds: float = 600.0
    """How long a transaction has been open before reading the log beside it is measured."""
    topics: int = 10_000
    groups: int = 1_000
    """… that are idle in one process."""
    load_seconds: float = 60.0
    """How long a load test runs."""
    lanes: int = 1
    """Of its topic: as many rows tell each progress of a group."""
    history: int = 5_000_000
    """Messages before a group that comes late."""
    history_rate: float = 200_000.0
    """Messages per second that it may read, at most."""
    catch_up_seconds: float = 180.0
    """After which a catch-up is not waited for."""
    minute: float = 4.0
    """Seconds that stand for a minute where a group is killed and comes back."""
    isolation_seconds: float = 60.0
    """How long a quiet topic is watched, alone and beside a noisy one."""
    day: float = 3.5
    """Seconds that stand for a day where partitions come and go."""
    day_rate: int = 10_000
    """Messages per second that are published there."""
    named_lanes: int = 100_000
    """That a topic has had messages in …"""
    active_lanes: int = 1_000
    """… and that have some at the same time …"""
    per_lane: int = 20
    """… this many each, per round."""
    points: Points = field(default_factory=Points)
    """Of the curves."""
    peer_rounds: int = 3
    """How often each system is measured beside the others."""
    peer_seconds: float = 1.0
    """How long it publishes, per round."""
    peer_messages: int = 30_000
    """That it drains, per round; slow ones a part of them."""
    peer_latency_seconds: float = 3.0
    """How long its latency is measured, per turn."""
    polls: int = 1_000
    """That wait on an HTTP server at the same time."""
    peers_at_once: bool = False
    """Whether all of them are measured at the same time: shows that they work, not how fast they are."""

    @classmethod
    def quick(cls) -> Self:
        """Some seconds for each part: shows that it works, not how fast it is."""
        return cls(messages=10_000, per_round=3_000, few=1_000, singles=100, rounds=1,
                   latency_seconds=0.3, old_seconds=1.0, log_messages=10_000, log_old_seconds=1.0, topics=50, groups=20,
                   load_seconds=8.0, history=20_000, history_rate=10_000.0, catch_up_seconds=4.0,
                   minute=1.0, isolation_seconds=3.0, named_lanes=2_000, active_lanes=50, per_lane=5,
                   day=0.7, day_rate=2_000, points=Points.quick(),
                   peer_rounds=1, peer_seconds=0.05, peer_messages=400, peer_latency_seconds=0.1,
                   polls=50, peers_at_once=True)  # fmt: skip

    @classmethod
    def short(cls) -> Self:
        """All that is measured, at sizes and lengths that let all scenarios together end within half an hour."""
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
