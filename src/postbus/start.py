"""The positions at which groups start to read."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

import msgspec

from postbus.errors import InvalidOption
from postbus.options import Duration, as_timedelta, is_count

POLL_INTERVAL = timedelta(seconds=2)
"""The usual time between two polls. `new` looks back by twice as much, so that a polling consumer misses nothing."""
Mode = Literal["new", "all", "timestamp", "message"]
StartKind = Literal["FROM_NOW", "FROM_BEGINNING", "FROM_TIMESTAMP", "FROM_MESSAGE_ID"]
_KINDS: dict[Mode, StartKind] = {"new": "FROM_NOW", "all": "FROM_BEGINNING", "timestamp": "FROM_TIMESTAMP"}


class Start(msgspec.Struct, frozen=True):
    """The first position of a group. It counts only when the group is new: later the group keeps its own position."""

    kind: StartKind
    timestamp: datetime | None = None
    message_id: int | None = None
    mode: Mode | None = None
    """new, all, timestamp or message. It is recorded when a group subscribes to a scope, and does not change."""
    look_back: timedelta = timedelta(0)
    """The time before now at which `new` begins."""

    NOW: ClassVar[Start]
    """Every message that commits from now on, including those of open transactions."""
    BEGINNING: ClassVar[Start]
    """All retained messages, within the bounds of the group's `catch_up`."""

    @classmethod
    def at(cls, timestamp: datetime) -> Start:
        """Messages that are published at this time or later."""
        if not isinstance(timestamp, datetime) or timestamp.utcoffset() is None:
            raise InvalidOption(
                f"start {timestamp!r} is not a time with a time zone", remedy="use datetime.now(timezone.utc) - …"
            )
        return cls("FROM_TIMESTAMP", timestamp=timestamp)

    @classmethod
    def from_message(cls, message_id: int) -> Start:
        """The message with this id, and those with higher ids."""
        if not is_count(message_id, least=0):
            raise InvalidOption(f"start {message_id!r} is not a message id", remedy="give the id of a message")
        return cls("FROM_MESSAGE_ID", message_id=message_id)

    @classmethod
    def from_kind(cls, kind: StartKind, timestamp: datetime | None = None, message_id: int | None = None) -> Start:
        """A start as HTTP has it, in three fields. Refuses fields that the kind does not take."""
        for name, value, own in (
            ("timestamp", timestamp, "FROM_TIMESTAMP"),
            ("message_id", message_id, "FROM_MESSAGE_ID"),
        ):
            if (value is not None) != (kind == own):
                raise InvalidOption(
                    f"start {kind!r} has {'no' if value is None else 'a'} {name}",
                    remedy=f"give a {name} with {own}, and with no other start",
                )
        if timestamp is not None:
            return cls.at(timestamp)
        return cls.of(kind) if message_id is None else cls.from_message(message_id)

    def as_fields(self) -> dict[str, Any]:
        """The start as HTTP has it. The id is a text, because it has up to 64 bits."""
        return {
            "start": self.kind,
            "timestamp": self.timestamp,
            "message_id": None if self.message_id is None else str(self.message_id),
        }

    @classmethod
    def in_mode(cls, mode: Mode, at: datetime | None = None, look_back: Duration | None = None) -> Start:
        """A start that is recorded: new (from now on, and just before), all, or timestamp (from `at` on)."""
        if mode not in _KINDS:
            raise InvalidOption(f"mode {mode!r} is not known", remedy="use 'new', 'all' or 'timestamp'")
        if (mode == "timestamp") != (at is not None):
            raise InvalidOption(
                f"mode {mode!r} {'has no time' if at is None else 'has a time'}",
                remedy="give a time with mode='timestamp', and with no other mode",
            )
        if mode != "new" and look_back is not None:
            raise InvalidOption(f"mode {mode!r} does not look back", remedy="look_back is for mode='new'")
        back = 2 * POLL_INTERVAL if look_back is None else as_timedelta(look_back, name="look_back")
        if back < timedelta(0):
            raise InvalidOption(f"look_back {look_back!r} is negative", remedy="use 0 or more")
        return cls(
            _KINDS[mode],
            None if at is None else cls.at(at).timestamp,
            mode=mode,
            look_back=back if mode == "new" else timedelta(0),
        )

    def recorded(self, *, is_wide: bool) -> Start:
        """The same start as a recorded mode. `is_wide`: for the topics of a namespace, a task or a pattern."""
        if self.mode is not None:
            return self
        if self.message_id is not None and is_wide:
            raise InvalidOption(
                "the topics of a namespace, task or pattern have no message in common to start from",
                remedy="start them at a time: Start.at(time), or --from TIME on the command line",
            )
        mode: Mode = next((mode for mode, kind in _KINDS.items() if kind == self.kind), "message")
        return Start(self.kind, self.timestamp, self.message_id, mode=mode)

    @classmethod
    def of(cls, given: Start | str | datetime | int) -> Start:
        """The start for what callers give."""
        if isinstance(given, Start):
            return given
        if isinstance(given, datetime):
            return cls.at(given)
        if isinstance(given, int):
            return cls.from_message(given)
        if given == "FROM_NOW":
            return cls.NOW
        if given == "FROM_BEGINNING":
            return cls.BEGINNING
        raise InvalidOption(
            f"start {given!r} is not known",
            remedy="use Start.NOW, Start.BEGINNING, Start.at(time) or Start.from_message(id)",
        )


Start.NOW = Start("FROM_NOW")
Start.BEGINNING = Start("FROM_BEGINNING")


class Default:
    """The start of groups that name none."""

    def __init__(self, mode: Mode | None) -> None:
        """Use `mode`, or else POSTBUS_DEFAULT_SUBSCRIPTION_MODE."""
        given = mode or os.environ.get("POSTBUS_DEFAULT_SUBSCRIPTION_MODE") or None
        if given not in (None, "new", "all"):
            raise InvalidOption(f"the default mode {given!r} is not known", remedy="use 'new' or 'all'")
        self.mode: Mode | None = None if given is None else "new" if given == "new" else "all"

    def start_of(
        self,
        start: Start | str | datetime | int | None,
        mode: Mode | None,
        look_back: Duration | None,
        *,
        is_recorded: bool,
        is_wide: bool,
    ) -> Start:
        """The start for these options. `is_recorded`: it is recorded as a mode. `is_wide`: see `Start.recorded`."""
        if mode is not None:
            if start is not None and mode != "timestamp":
                raise InvalidOption("start and mode are both given", remedy="give one of them")
            if start is not None and not isinstance(start, datetime):
                raise InvalidOption(f"start {start!r} is not a time", remedy="give a datetime with mode='timestamp'")
            return Start.in_mode(mode, start, look_back)
        if look_back is not None:
            raise InvalidOption("look_back is for mode='new'", remedy="give mode='new', or omit look_back")
        if start is None:
            if self.mode is not None or is_recorded:
                return Start.in_mode(self.mode or "all")
            return Start.NOW
        given = Start.of(start)
        return given.recorded(is_wide=is_wide) if is_recorded else given
