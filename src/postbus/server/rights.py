"""Rights: the roles that each route needs, and the limits of tokens that apply to it. No other place decides this.

docs/security.md shows this table to people, and a test compares the two.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from postbus.results.access import TokenRole

ROLES: tuple[str, ...] = get_args(TokenRole)

_INCLUDED = {"operator": frozenset({"observer"}), "admin": frozenset({"observer", "operator"})}
_GET_PAYLOADS = frozenset({"consumer", "admin"})
"""Roles that see payloads: by pops, and by webhooks."""


class Right(msgspec.Struct, frozen=True):
    """The rights that a route requires of its caller."""

    roles: tuple[str, ...]
    """The caller needs one of them. Without any, the route is for everybody."""
    all_groups: bool = False
    """Whether the token must be for all groups."""
    all_topics: bool = False
    """Whether the token must be for all topics."""


_EVERYBODY = Right(())
_PUSH = Right(("producer",))
_CONSUME = Right(("consumer",))
_CONSUME_MANY = Right(("consumer",), all_topics=True)
_LOOK = Right(("observer",))
_OPERATE = Right(("operator",))
_OPERATE_TOPIC = Right(("operator",), all_groups=True)
_ADMINISTER = Right(("admin",))
_ADMINISTER_TOPIC = Right(("admin",), all_groups=True)
_ADMINISTER_ALL = Right(("admin",), all_groups=True, all_topics=True)

RIGHTS: dict[str, Right] = {
    "welcome": _EVERYBODY,
    "livez": _EVERYBODY,
    "readyz": _EVERYBODY,
    "push": _PUSH,
    "pop": _CONSUME,
    "pop_scope": _CONSUME_MANY,
    "heartbeat": _CONSUME,
    "heartbeat_scope": _CONSUME_MANY,
    "ack": _CONSUME,
    "retry": _CONSUME,
    "dead_letter": _CONSUME,
    "release": _CONSUME,
    "extend": _CONSUME,
    "transaction": Right(("consumer", "producer")),  # its contents decide which of them
    "subscribe_group": Right(("consumer", "admin")),
    "browse_messages": _LOOK,
    "show_message": _LOOK,
    "follow_topic": _LOOK,
    "list_topics": _LOOK,
    "show_topic": _LOOK,
    "list_all_groups": _LOOK,
    "list_groups": _LOOK,
    "show_group": _LOOK,
    "group_metrics": _LOOK,
    "list_catch_ups": _LOOK,
    "group_catch_ups": _LOOK,
    "list_all_dead_letters": _LOOK,
    "list_dead_letters": _LOOK,
    "show_dead_letter": _LOOK,
    "show_health": _LOOK,
    "show_health_limits": _LOOK,
    "pause_topic": _OPERATE_TOPIC,
    "resume_topic": _OPERATE_TOPIC,
    "pause_group": _OPERATE,
    "resume_group": _OPERATE,
    "seek_group": _OPERATE,
    "resurrect_group": _OPERATE,  # without catch_up: admin
    "resume_catch_up": _OPERATE,
    "redrive_dead_letters": _OPERATE,
    "cancel_group": _ADMINISTER,
    "remove_group": _ADMINISTER,
    "cancel_catch_up": _ADMINISTER,
    "purge_dead_letters": _ADMINISTER,
    "set_health_limits": _ADMINISTER,
    "create_topic": _ADMINISTER_TOPIC,
    "set_topic": _ADMINISTER_TOPIC,
    "delete_topic": _ADMINISTER_TOPIC,
    "purge_topic": _ADMINISTER_TOPIC,
    "list_webhooks": _ADMINISTER,
    "create_webhook": _ADMINISTER,
    "show_webhook": _ADMINISTER,
    "set_webhook": _ADMINISTER,
    "delete_webhook": _ADMINISTER,
    "list_tokens": _ADMINISTER_ALL,
    "list_audit": _ADMINISTER,
}


def held_by(roles: frozenset[str], *, sees_payloads: bool) -> frozenset[str]:
    """These roles, and those that they include: an admin is also an operator, and an operator also an observer.

    A caller without payloads is neither a consumer nor an admin, because these roles see payloads.
    """
    given = roles if sees_payloads else roles - _GET_PAYLOADS
    return given.union(*(_INCLUDED.get(role, frozenset()) for role in given))
