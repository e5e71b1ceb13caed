"""Handles messages of the log for a group: each goes to the member that wants it, alone or in a batch."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from postbus._content.segment import Part, Segment
from postbus._group.deferral import Deferral
from postbus._group.lane_set import LaneSet, WindowEntry
from postbus._group.members import Members, payload_of
from postbus._handling.handling import ACK, NOT_DECODABLE, Handling, not_decodable
from postbus.group import Member
from postbus.message import Outcome
from postbus.subscription import HandlerCall

Chosen = dict[Member, tuple[list[Part], list[Any]]]
"""Messages and payloads, by the member that gets them."""


class GroupHandler:
    """Calls handlers with messages in the order of the log. When a method returns, failed messages are deferred.

    The methods return whether all messages are done, or deferred. If not, the lane set is ending or lost.
    """

    def __init__(self, members: Members, deferral: Deferral) -> None:
        self._members = members
        self._deferral = deferral

    async def handle_one(self, lane_set: LaneSet, segment: Segment, index: int) -> bool:
        if self._deferral.affects_log and await self._deferral.skip_or_park(lane_set, segment, index):
            return not lane_set.is_lost
        chosen = self._members.only or self._members.choose(segment.message(index))
        if chosen is None:
            self._members.group.filtered += 1
        elif isinstance(chosen, Member):
            handling = self._members.handling_of(chosen)
            chosen.counts.in_flight += 1  # as `running` does, which would take time for each message
            began = time.monotonic()
            try:
                outcome = await _outcome(handling, segment, index)
            finally:
                chosen.counts.in_flight -= 1
                chosen.counts.handling_seconds += time.monotonic() - began
            if outcome is ACK:
                chosen.counts.processed += 1
                return True
            chosen.counts.failed += 1
            await self._deferral.defer_by_outcome(lane_set, segment, index, outcome, handling)
        else:
            await self._deferral.defer_by_outcome(lane_set, segment, index, chosen, None)
        return not lane_set.is_lost

    async def handle_batch(self, entry: WindowEntry, parts: Sequence[Part]) -> bool:
        """Handle some messages of an entry together."""
        lane_set, member = entry.lane_set, self._members.only
        if member is None or self._deferral.affects_log:
            return await self._handle_chosen(entry, parts)
        handling = self._members.handling_of(member)
        call = handling.call
        try:
            payloads: list[Any] = []
            for part in parts:
                payloads += _payloads(call, *part)
        except NOT_DECODABLE:
            return await self._handle_chosen(entry, parts)
        needs_messages = call.message_parameter is not None or bool(self._members.middleware)
        messages = [(s, i) for s, start, stop in parts for i in range(start, stop)] if needs_messages else None
        return await self._call_batch(lane_set, member, messages, parts, payloads)

    async def _handle_chosen(self, entry: WindowEntry, parts: Sequence[Part]) -> bool:
        """Handle a batch whose messages have to be checked one by one before."""
        lane_set = entry.lane_set
        by_member = await self.choose_each(lane_set, parts)
        for member, (chosen_parts, payloads) in by_member.items():
            if lane_set.is_ending:  # since the last call: nothing more begins, not even for another member
                return False
            messages = [(segment, index) for segment, index, _ in chosen_parts]
            if not await self._call_batch(lane_set, member, messages, chosen_parts, payloads):
                return False
            entry.handled += chosen_parts  # these are done, even if the call for another member is cancelled
        return not lane_set.is_lost

    async def choose_each(self, lane_set: LaneSet, parts: Sequence[Part]) -> Chosen:
        """Choose members for messages, and decode the payloads. Defers messages that cannot be handled now."""
        by_member: defaultdict[Member, tuple[list[Part], list[Any]]] = defaultdict(lambda: ([], []))
        for segment, start, stop in parts:
            for index in range(start, stop):
                if await self._deferral.skip_or_park(lane_set, segment, index):
                    continue
                if lane_set.is_lost:
                    # Lost while another message was deferred. With the lane we forgot which keys are blocked, so a
                    # message of such a key would overtake the parked ones.
                    return {}
                chosen = self._members.only or self._members.choose(segment.message(index))
                if chosen is None:
                    self._members.group.filtered += 1
                elif isinstance(chosen, Member):
                    handling = self._members.handling_of(chosen)
                    try:
                        payload = payload_of(handling, segment, index)
                    except NOT_DECODABLE as error:
                        chosen.counts.failed += 1
                        await self._deferral.defer_by_outcome(lane_set, segment, index, not_decodable(error), handling)
                        continue
                    by_member[chosen][0].append((segment, index, index + 1))
                    by_member[chosen][1].append(payload)
                else:
                    await self._deferral.defer_by_outcome(lane_set, segment, index, chosen, None)
        return by_member

    async def _call_batch(
        self,
        lane_set: LaneSet,
        member: Member,
        messages: list[tuple[Segment, int]] | None,
        parts: Sequence[Part],
        payloads: list[Any],
    ) -> bool:
        handling = self._members.handling_of(member)
        given = [segment.message(index) for segment, index in messages] if messages is not None else []
        count = len(payloads)  # the handler may change the list
        with member.counts.running(count):
            outcomes = await handling.outcomes_unless_acked(given, payloads, None)
        if outcomes is None:
            member.counts.processed += count
            return True
        failed = sum(outcome is not ACK for outcome in outcomes)
        member.counts.processed += count - failed
        member.counts.failed += failed
        if failed:
            handled = [(segment, index) for segment, start, stop in parts for index in range(start, stop)]
            await self._defer_failed(lane_set, handled, outcomes, handling)
        return not failed or not lane_set.is_lost

    async def _defer_failed(
        self, lane_set: LaneSet, handled: list[tuple[Segment, int]], outcomes: Sequence[Outcome], handling: Handling
    ) -> None:
        """Defer the messages of a batch that failed, and park the later ones of their keys.

        The later ones are delivered again though they succeeded. Otherwise a key's earlier message would be handled
        after its later one.
        """
        blocked_keys: set[str] = set()
        for (segment, index), outcome in zip(handled, outcomes, strict=True):
            key = segment.key(index)
            if outcome is not ACK:
                await self._deferral.defer_by_outcome(lane_set, segment, index, outcome, handling)
                if key is not None and self._deferral.messages.is_blocked(key):
                    blocked_keys.add(key)
            elif key in blocked_keys:
                await self._deferral.defer(lane_set, segment, index, "park")


def _payloads(call: HandlerCall, segment: Segment, start: int, stop: int) -> list[Any]:
    """Decode a part of a segment for a batch handler. Raises what NOT_DECODABLE lists."""
    decode = call.decoder
    if decode is None:
        return [call.payload(segment.message(index)) for index in range(start, stop)]
    if decode.is_shareable or stop - start == len(segment):
        return segment.decoded(decode)[start:stop]
    return [decode(segment.payloads[index], segment.type_of(index)) for index in range(start, stop)]


async def _outcome(handling: Handling, segment: Segment, index: int) -> Outcome:
    try:
        payload = payload_of(handling, segment, index)
    except NOT_DECODABLE as error:
        return not_decodable(error)
    if handling.is_plain:
        wants_message = handling.call.message_parameter is not None
        return await handling.plain_outcome(payload, segment.message(index) if wants_message else None)
    return (await handling.outcomes([segment.message(index)], [payload], None))[0]
