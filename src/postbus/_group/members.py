"""Members of a group in this process: chooses who gets a message, and decodes it for the handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postbus._content.segment import Segment
from postbus._handling.handling import NOT_DECODABLE, Handling
from postbus.group import Group, Member
from postbus.message import Message, Outcome
from postbus.middleware import Middleware


class Members:
    """Chooses members by their filters and the message's key."""

    def __init__(self, group: Group, middleware: Sequence[Middleware]) -> None:
        self.group = group
        self.middleware = middleware
        self._handlings: dict[Member, Handling] = {}

    def close(self) -> None:
        for handling in self._handlings.values():
            handling.close()

    def handling_of(self, member: Member) -> Handling:
        handling = self._handlings.get(member)
        if handling is None:
            handling = self._handlings[member] = Handling(member.subscription, self.middleware)
        return handling

    @property
    def only(self) -> Member | None:
        """The member that gets every message, if there is one: a single member without filters."""
        if self.group.filter is None and len(self.group.members) == 1:
            member = next(iter(self.group.members.values()))
            return member if member.filter is None else None
        return None

    def choose(self, message: Message) -> Member | Outcome | None:
        """Choose the member for a message. Returns None if all filters reject it, or an outcome if a filter fails."""
        try:
            return self.group.member_for(message)
        except BaseException as error:
            return self.handling_of(next(iter(self.group.members.values()))).as_retry(error)


def payload_of(handling: Handling, segment: Segment, index: int) -> Any:
    """Decode a message for its handler. Raises what NOT_DECODABLE lists."""
    decode = handling.call.decoder
    if decode is None:
        return handling.call.payload(segment.message(index))
    try:
        if decode.is_shareable and len(segment) > 1:
            return segment.decoded(decode)[index]
    except NOT_DECODABLE:
        pass  # another message of the segment may be the one that does not decode
    return decode(segment.payloads[index], segment.type_of(index))
