"""Results of `bus.admin`: frozen structs with the names and types of their fields.

`msgspec.structs.asdict` makes a dict of one, and `msgspec.json.encode` JSON.
"""

from postbus.health import GroupFinding
from postbus.results.access import AuditEntry, TokenInfo, WebhookInfo
from postbus.results.groups import (
    CatchUpInfo,
    GroupInfo,
    GroupMetrics,
    MemberInfo,
    RemovedGroup,
    Resurrection,
    ScopeInfo,
)
from postbus.results.health import (
    GroupHealthLimits,
    GroupNearTimeout,
    Inconsistency,
    StuckMessages,
    SweepCounts,
    SweepHealth,
    SweepJob,
    SweepReport,
    SweepSettings,
    SystemHealth,
    UnclaimedMessages,
)
from postbus.results.messages import (
    DeadLetterInfo,
    DeliveryInfo,
    LogMessage,
    MessageInfo,
    MessageProgress,
    MessageStory,
    QueueMessage,
)
from postbus.results.topics import MoveProgress, QueueBacklog, SinkAway, TopicInfo, WorkerInfo

__all__ = [
    "AuditEntry",
    "CatchUpInfo",
    "DeadLetterInfo",
    "DeliveryInfo",
    "GroupFinding",
    "GroupHealthLimits",
    "GroupInfo",
    "GroupMetrics",
    "GroupNearTimeout",
    "Inconsistency",
    "LogMessage",
    "MemberInfo",
    "MessageInfo",
    "MessageProgress",
    "MessageStory",
    "MoveProgress",
    "QueueBacklog",
    "QueueMessage",
    "RemovedGroup",
    "Resurrection",
    "ScopeInfo",
    "SinkAway",
    "StuckMessages",
    "SweepCounts",
    "SweepHealth",
    "SweepJob",
    "SweepReport",
    "SweepSettings",
    "SystemHealth",
    "TokenInfo",
    "TopicInfo",
    "UnclaimedMessages",
    "WebhookInfo",
    "WorkerInfo",
]
