"""Where a group starts to read."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from postbus.errors import InvalidOption


class Start(msgspec.Struct, frozen=True):
    """A group's first position. It counts once, when the group is new: later the group keeps its place."""

    kind: str
    timestamp: datetime | None = None
    message_id: int | None = None

    NOW: ClassVar[Start]
    """Every message that commits from now on, also of transactions that are open already."""
    BEGINNING: ClassVar[Start]
    """All that is retained, within the bounds of the group's `catch_up`: the newest million by default."""

    @classmethod
    def at(cls, timestamp: datetime) -> Start:
        """Messages published at this time or later."""
        if not isinstance(timestamp, datetime) or timestamp.utcoffset() is None:
            raise InvalidOption(
                f"start {timestamp!r} is not a time with a time zone", remedy="use datetime.now(timezone.utc) - …"
            )
        return cls("FROM_TIMESTAMP", timestamp=timestamp)

    @classmethod
    def from_message(cls, message_id: int) -> Start:
        """This message, and those with a higher id."""
        if not isinstance(message_id, int) or isinstance(message_id, bool) or message_id < 0:
            raise InvalidOption(f"start {message_id!r} is not a message id", remedy="give the id of a message")
        return cls("FROM_MESSAGE_ID", message_id=message_id)

    @classmethod
    def of(cls, given: Start | str | datetime | int) -> Start:
        """A start position, however it was given."""
        if isinstance(given, Start):
            return given
        if isinstance(given, datetime):
            return cls.at(given)
        if isinstance(given, int):
            return cls.from_message(given)
        if given in ("FROM_NOW", "FROM_BEGINNING"):
            return cls(given)
        raise InvalidOption(
            f"start {given!r} is not known",
            remedy="use Start.NOW, Start.BEGINNING, Start.at(time) or Start.from_message(id)",
        )


Start.NOW = Start("FROM_NOW")
Start.BEGINNING = Start("FROM_BEGINNING")
