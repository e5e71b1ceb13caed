"""The rule for names of topics and groups."""

from __future__ import annotations

import re

from postbus.errors import InvalidTopicName

NAME_RULE = "a name has 1 to 200 letters, digits or . _ - : / and starts with a letter, a digit or _"

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}"
_NAME = re.compile(NAME)


def is_name(name: object) -> bool:
    """Whether a topic or a group may have a name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_topic_name(name: str) -> None:
    """Refuse a name that breaks the rules."""
    if not is_name(name):
        raise InvalidTopicName(
            f"bad topic name {name!r}",
            remedy=NAME_RULE,
        )
