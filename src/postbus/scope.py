"""Scopes, which groups subscribe to: a topic, a key of it, or topics by namespace, task or pattern."""

from __future__ import annotations

import re

import msgspec

from postbus._content.names import NAME_RULE, check_topic_name, is_name
from postbus.errors import InvalidOption, InvalidTopicName

_PATTERN = re.compile(r"([*#]|[A-Za-z0-9_:/-]+)(\.([*#]|[A-Za-z0-9_:/-]+))*")


class Scope(msgspec.Struct, frozen=True):
    """One topic, one key of a topic, or all topics of a namespace, of a task, or whose names match a pattern."""

    topic: str | None = None
    key: str | None = None
    namespace: str | None = None
    task: str | None = None
    pattern: str | None = None

    @classmethod
    def of(
        cls,
        topic: str | None = None,
        *,
        key: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        pattern: str | None = None,
    ) -> Scope:
        """The scope for what callers name. A topic with * or # in its name is a pattern."""
        if sum(one is not None for one in (topic, namespace, task, pattern)) != 1:
            raise InvalidOption(
                "a group subscribes to a topic, a namespace, a task or a pattern",
                remedy="give exactly one of them; to have several scopes, subscribe the group once for each",
            )
        for what, name in (("namespace", namespace), ("task", task)):
            if name is not None and not is_name(name):
                raise InvalidTopicName(
                    f"bad {what} name {name!r:.220}",
                    remedy=NAME_RULE,
                )
        if isinstance(topic, str) and not {"*", "#"}.isdisjoint(topic):
            topic, pattern = None, topic
        if key is not None and topic is None:
            raise InvalidOption("a key belongs to one topic", remedy="name the topic, or omit the key")
        if key is not None and not isinstance(key, str):
            raise InvalidOption(f"key {key!r:.220} is not a text", remedy="give the key of messages")
        if topic is not None:
            check_topic_name(topic)
        if pattern is not None:
            _check_pattern(pattern)
        return cls(topic, key, namespace, task, pattern)

    @property
    def is_wide(self) -> bool:
        """Whether the scope may have several topics."""
        return self.topic is None

    @property
    def is_recorded(self) -> bool:
        """Whether the database records where a group starts in it: unless the scope is one whole topic."""
        return self.is_wide or self.key is not None

    def __str__(self) -> str:
        """The scope in words; for a topic, or a key of it, the topic's name."""
        if self.namespace is not None:
            return f"namespace {self.namespace}"
        return f"task {self.task}" if self.task is not None else self.topic or self.pattern or ""


class Heartbeat(msgspec.Struct, frozen=True):
    """The state of a group in a topic after a heartbeat."""

    topic: str
    state: str
    """ACTIVE, unless the group is PAUSED."""
    missed: int | None = None
    """If the group was DEAD: the number of messages that it has to catch up with."""
    skipped: int | None = None
    """The number of these that it will not get."""


def _check_pattern(pattern: str) -> None:
    is_known = isinstance(pattern, str) and len(pattern) <= 200 and _PATTERN.fullmatch(pattern) is not None
    if not is_known or {"*", "#"}.isdisjoint(pattern):
        raise InvalidTopicName(
            f"bad pattern {pattern!r:.220}",
            remedy="separate words by dots, and use * (one word) or # (any number of words) at least once",
        )
