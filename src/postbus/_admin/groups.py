"""Looking after groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Unpack

from postbus._admin.base import not_a_log
from postbus._admin.scopes import ScopeAdmin
from postbus.errors import GroupNotFound, InvalidGroup, WrongSemantics
from postbus.health import GroupFinding, HealthLimits, limits_json
from postbus.options import Duration, as_timedelta
from postbus.results.groups import (
    CatchUpInfo,
    GroupInfo,
    GroupMetrics,
    GroupState,
    MemberInfo,
    RemovedGroup,
    Resurrection,
)
from postbus.results.health import GroupHealthLimits, GroupNearTimeout, Inconsistency, StuckMessages, UnclaimedMessages
from postbus.start import Start

_LOOK_FOR_LANES = 0.2  # seconds


class GroupAdmin(ScopeAdmin):
    """Operators' methods for groups. Reached as `bus.admin`."""

    async def groups(
        self, topic: str | None = None, group: str | None = None, *, cancelled: bool = False
    ) -> list[GroupInfo]:
        """The groups of a topic, or of all topics, with lag and state; with `cancelled` also those that ended."""
        found = await (await self._store()).groups(topic, group)
        return [one for one in found if cancelled or one.state != "CANCELLED"]

    async def group(self, topic: str, name: str) -> GroupInfo:
        """One group of a topic, with lag and state."""
        async with self._explaining(topic):
            known = await self.groups(topic, name, cancelled=True)
            found = [one for one in known if one.state != "CANCELLED"]
            if not found:
                raise GroupNotFound(
                    f"group {name!r} has no subscription to topic {topic!r}",
                    remedy=f"it was CANCELLED, which is final; make a new one: postbus groups subscribe {name} {topic}"
                    if known
                    else f"list them: postbus groups list {topic}",
                )
        return found[0]

    async def members(self, topic: str, name: str) -> list[MemberInfo]:
        """Return what each member of a group has done, in all processes."""
        await self.group(topic, name)
        return await (await self._store()).members(topic, name)

    async def pause_group(self, topic: str, name: str) -> None:
        """Stop delivery to a group, in all processes. It keeps its position, and what is published meanwhile.

        When this returns, no handler of this process begins with another message; other processes stop within four
        seconds. What handlers have begun they finish.
        """
        await self._set_group_state(topic, name, "PAUSED")

    async def resume_group(self, topic: str, name: str) -> None:
        """Start delivery to a paused group again."""
        await self._set_group_state(topic, name, "ACTIVE")

    async def cancel_group(self, topic: str, name: str) -> None:
        """End a group's subscription for good. Its position is forgotten; subscribing again makes a new one."""
        await self._set_group_state(topic, name, "CANCELLED")

    async def _set_group_state(self, topic: str, name: str, state: GroupState) -> None:
        async with self._explaining(topic):
            await (await self._store()).set_group_state(topic, name, state)
        if state != "ACTIVE":
            await self._halt(topic, name)

    async def seek(self, topic: str, group: str, start: Start | str | datetime | int, *, dry_run: bool = False) -> int:
        """Move a group to another position. Its consumers go on from there.

        Returns how many messages the group has before it then. With `dry_run` it stays where it is.
        """
        to = Start.of(start)
        async with self._explaining(topic):
            store = await self._store()
            return await store.seek(topic, group, to.kind, to.timestamp, to.message_id, dry_run=dry_run)

    async def catch_ups(self, topic: str | None = None, group: str | None = None) -> list[CatchUpInfo]:
        """History that groups work through, or have: how much of it, how fast, and when it ends at that rate."""
        return await (await self._store()).catch_ups(topic, group)

    async def cancel_catch_up(self, topic: str, group: str) -> None:
        """Stop working through a group's history. The group itself goes on; so can the history, later."""
        await self._set_catch_up(topic, group, is_wanted=False)

    async def resume_catch_up(self, topic: str, group: str) -> None:
        """Go on with a history that was cancelled, where it stopped, with what is still retained."""
        await self._set_catch_up(topic, group, is_wanted=True)

    async def _set_catch_up(self, topic: str, group: str, *, is_wanted: bool) -> None:
        async with self._explaining(topic):
            await (await self._store()).set_catch_up(topic, group, is_wanted=is_wanted)

    async def resurrect_group(self, topic: str, name: str, *, catch_up: bool = True) -> Resurrection:
        """Bring a DEAD group back: it goes on where it stood, or, without catch-up, with what comes from now on.

        Returns how many messages it missed, and how many of these it will not get.
        """
        state = (await self.group(topic, name)).state
        found = await (await self._store()).resurrect_group(topic, name, catch_up=catch_up)
        if found is None:
            raise InvalidGroup(
                f"group {name!r} of topic {topic!r} is {state}: only DEAD groups are resurrected",
                remedy=f"let it go on: postbus groups resume {topic} {name}"
                if state == "PAUSED"
                else "it is alive: nothing has to be done",
            )
        return found

    async def remove_group(self, topic: str, name: str, *, wait: Duration = 30.0) -> RemovedGroup:
        """Remove a group, with all that belongs to it: its position, deferred messages, dead letters and figures.

        Processes settle what they have in hand first. Those that hold lanes of it after `wait` still handle theirs, but
        it is not settled: `held` tells how many lanes that were. `removed` is false where a transaction goes on in one.
        """
        store = await self._store()
        deadline = time.monotonic() + as_timedelta(wait, name="wait").total_seconds()
        async with self._explaining(topic):
            while True:
                is_over = time.monotonic() >= deadline
                told = await store.remove_group(topic, name, force=is_over)
                if told.removed or is_over:
                    return told
                await asyncio.sleep(min(_LOOK_FOR_LANES, max(0.0, deadline - time.monotonic())))

    async def force_complete(
        self, topic: str, older_than: Duration, *, group: str | None = None, dry_run: bool = False
    ) -> dict[str, int]:
        """Move live groups, or one, past all messages that were published longer ago: those they have not settled.

        They do not get these any more. Returns how many messages each group skips; with `dry_run` nothing changes.
        """
        age = as_timedelta(older_than, name="older_than")
        async with self._explaining(topic):
            return await (await self._store()).force_complete(topic, age, group, dry_run=dry_run)

    async def group_metrics(self, topic: str, name: str) -> GroupMetrics:
        """Return what a group has done, how long its handlers take, how fast it is, and what is before it."""
        async with self._explaining(topic):
            return await (await self._store()).group_metrics(topic, name)

    async def group_findings(self, stuck_after: Duration = timedelta(hours=1)) -> list[GroupFinding]:
        """Find problems of groups (level warning), and unusual states (info), each with a remedy.

        `postbus groups check`, `postbus doctor` and the server's /v1/health say the same. `stuck_after`: messages that
        are not settled for longer are stuck.
        """
        return await (await self._store()).group_findings(as_timedelta(stuck_after, name="stuck_after"))

    async def health_limits(self, topic: str | None = None, group: str | None = None) -> GroupHealthLimits:
        """The limits beyond which a group is in trouble: see `HealthLimits`. None where there is no limit."""
        return await (await self._store()).health_limits(topic, group)

    async def set_health_limits(
        self, topic: str | None = None, group: str | None = None, **limits: Unpack[HealthLimits]
    ) -> GroupHealthLimits:
        """Set such limits for all groups, those of a topic, a name on all topics, or one group of a topic.

        What is left out stays. "off" is no limit, None the next less specific limit. Returns what holds now.
        """
        store = await self._store()
        await store.set_health_limits(topic, group, limits_json(limits))
        return await store.health_limits(topic, group)

    async def groups_near_timeout(self, share: float = 0.8) -> list[GroupNearTimeout]:
        """Groups without a heartbeat for this share of their timeout, after which they are DEAD."""
        return await (await self._store()).groups_near_timeout(share)

    async def stuck_messages(self, older_than: Duration = timedelta(hours=1)) -> list[StuckMessages]:
        """Topics with messages older than that which a live group has not settled: whose, how many, since when."""
        return await (await self._store()).stuck_messages(as_timedelta(older_than, name="older_than"))

    async def zero_subscription_messages(self) -> list[UnclaimedMessages]:
        """Topics with messages that no group was required for and none has settled: their number, and the oldest."""
        return await (await self._store()).zero_subscription_messages()

    async def inconsistencies(self) -> list[Inconsistency]:
        """Find inconsistent rows of groups, which should never exist, each with an explanation."""
        return await (await self._store()).inconsistencies()

    @asynccontextmanager
    async def _explaining(self, topic: str) -> AsyncIterator[None]:
        """Explain why a group is missing: the topic may not exist, or may be a QUEUE."""
        try:
            yield
        except (GroupNotFound, WrongSemantics):
            if await self.semantics(topic) == "QUEUE":
                raise not_a_log(topic) from None
            raise
