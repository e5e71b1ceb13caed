"""Answers for callers that are limited to some groups: they reveal nothing about other groups."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from postbus.errors import MessageNotFound
from postbus.health import GroupFinding
from postbus.results.messages import MessageStory, QueueMessage
from postbus.results.topics import TopicInfo
from postbus.server.callers import Caller
from postbus.server.views.base import view
from postbus.server.views.messages import MessageStoryView, story_view
from postbus.server.views.topics import TopicView


def of_topic(caller: Caller, topic: TopicInfo) -> TopicView:
    """Show a topic. A caller that is limited to some groups gets no counts over all of them."""
    shown = view(TopicView, topic)
    if caller.has_all_groups:
        return shown
    return msgspec.structs.replace(shown, groups=None, dead=None if topic.semantics == "PUB_SUB" else topic.dead)


def of_message(caller: Caller, story: QueueMessage | MessageStory) -> MessageStoryView:
    """Show the story of a message at the caller's groups. If only others keep a copy, the message is not found."""
    if caller.has_all_groups or isinstance(story, QueueMessage):
        return story_view(story)
    deliveries = [one for one in story.deliveries if caller.sees_group(one.group_name)]
    if not (story.retained or deliveries):
        raise no_message(story.topic, story.id)
    seen = msgspec.structs.replace(
        story,
        deliveries=deliveries,
        required=[one for one in story.required if caller.sees_group(one)],
        completed=[one for one in story.completed if caller.sees_group(one)],
    )
    return msgspec.structs.replace(story_view(seen), status=UNSET, settled_at=UNSET)


def no_message(topic: str, message_id: int) -> MessageNotFound:
    """The same words as for a message that was never there."""
    return MessageNotFound(
        f"topic '{topic}' has no message {message_id}",
        remedy="it was dropped when its retention had passed, or never was there",
    )


def of_findings(caller: Caller, findings: list[GroupFinding]) -> Iterator[GroupFinding]:
    """The problems of the caller's groups."""
    for one in findings:
        if not caller.sees(one.topic):
            continue
        if caller.has_all_groups:
            yield one
        elif one.group is not None:
            groups = one.group.split(", ")
            seen = [name for name in groups if caller.sees_group(name)]
            if seen == groups:
                yield one
            elif seen:  # the figures are those of all its groups
                text = "it has messages that were not settled for long"
                yield msgspec.structs.replace(one, group=", ".join(seen), text=text)
