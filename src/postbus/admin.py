"""Managing topics, groups and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Unpack

from postbus._store import Store
from postbus.errors import (
    GroupNotFound,
    InvalidGroup,
    InvalidInput,
    MessageNotFound,
    TopicNotEmpty,
    TopicNotFound,
    WrongSemantics,
)
from postbus.importing import ImportResult, Progress, import_outbox
from postbus.options import TopicOptions, as_json
from postbus.publish import check_topic_name
from postbus.start import Start
from postbus.sweeping import SweepingOptions, sweeping_json


class Admin:
    """What operators do, as methods. Reached as `bus.admin`."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store

    async def create_topic(self, name: str, **options: Unpack[TopicOptions]) -> None:
        """Create a topic. Needed only where its options differ from the defaults."""
        check_topic_name(name)
        await (await self._store()).create_topic(name, as_json(options))

    async def set_topic(self, name: str, **options: Unpack[TopicOptions]) -> None:
        """Change options of a topic."""
        await (await self._store()).set_topic(name, as_json(options))

    async def topics(self) -> list[dict[str, Any]]:
        """All topics, with options and what they hold."""
        return await (await self._store()).topics()

    async def topic(self, name: str) -> dict[str, Any]:
        """One topic, with options and what it holds."""
        found = await (await self._store()).topics(name)
        if not found:
            raise TopicNotFound(f"there is no topic {name!r}", remedy=f"create it: postbus topics create {name}")
        return found[0]

    async def pause_topic(self, name: str) -> None:
        """Stop delivery of a QUEUE; publishing goes on. Groups of a PUB_SUB topic are paused each on its own."""
        await self._refuse_log(name, "is not paused as a whole", f"pause its groups: postbus groups pause {name} GROUP")
        await (await self._store()).pause_topic(name)

    async def resume_topic(self, name: str) -> None:
        """Start delivery of a paused topic again."""
        await (await self._store()).resume_topic(name)

    async def purge_topic(self, name: str, *, dry_run: bool = False) -> int:
        """Delete what waits in a QUEUE. Returns how many messages that is."""
        await self._refuse_log(
            name,
            "has no messages that wait: each group has its own place in them",
            f"move a group on: postbus groups seek {name} GROUP --to now; retention drops the messages",
        )
        return await (await self._store()).purge_topic(name, dry_run=dry_run)

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic; with `force` also its messages and groups."""
        try:
            await (await self._store()).delete_topic(name, force=force)
        except TopicNotEmpty as error:
            if (await self.topic(name))["semantics"] == "PUB_SUB":
                remedy = "delete it together with its log, its groups and their dead letters: --force"
                raise TopicNotEmpty(error.message, remedy=remedy) from None
            raise

    async def _refuse_log(self, name: str, why: str, remedy: str) -> None:
        if (await self.topic(name))["semantics"] == "PUB_SUB":
            raise WrongSemantics(f"topic {name!r} is PUB_SUB, and {why}", remedy=remedy)

    async def groups(
        self, topic: str | None = None, group: str | None = None, *, cancelled: bool = False
    ) -> list[dict[str, Any]]:
        """The groups of a topic, or of all topics, with lag and state; with `cancelled` also those that ended."""
        found = await (await self._store()).groups(topic, group)
        return [one for one in found if cancelled or one["state"] != "CANCELLED"]

    async def group(self, topic: str, name: str) -> dict[str, Any]:
        """One group of a topic, with lag and state."""
        async with self._explaining(topic):
            found = await self.groups(topic, name)
            if not found:
                raise GroupNotFound(
                    f"group {name!r} has no subscription to topic {topic!r}",
                    remedy=f"list them: postbus groups list {topic}",
                )
        return found[0]

    async def members(self, topic: str, name: str) -> list[dict[str, Any]]:
        """What each member of a group has done, in all processes."""
        await self.group(topic, name)
        return await (await self._store()).members(topic, name)

    async def pause_group(self, topic: str, name: str) -> None:
        """Stop delivery to a group, in all processes. It keeps its place, and what is published meanwhile."""
        await self._set_group_state(topic, name, "PAUSED")

    async def resume_group(self, topic: str, name: str) -> None:
        """Start delivery to a paused group again."""
        await self._set_group_state(topic, name, "ACTIVE")

    async def cancel_group(self, topic: str, name: str) -> None:
        """End a group's subscription for good. Its place is forgotten; subscribing again makes a new one."""
        await self._set_group_state(topic, name, "CANCELLED")

    async def _set_group_state(self, topic: str, name: str, state: str) -> None:
        async with self._explaining(topic):
            await (await self._store()).set_group_state(topic, name, state)

    async def seek(self, topic: str, group: str, start: Start | str | datetime | int, *, dry_run: bool = False) -> int:
        """Move a group to another place; who works for it goes on from there.

        Returns how many messages the group has before it then. With `dry_run` it stays where it is.
        """
        to = Start.of(start)
        async with self._explaining(topic):
            store = await self._store()
            return await store.seek(topic, group, to.kind, to.timestamp, to.message_id, dry_run=dry_run)

    async def catch_ups(self, topic: str | None = None, group: str | None = None) -> list[dict[str, Any]]:
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

    async def resurrect_group(self, topic: str, name: str, *, catch_up: bool = True) -> dict[str, Any]:
        """Bring a DEAD group back: it goes on where it stood, or, without catch-up, with what comes from now on.

        Returns how many messages it missed, and how many of these it will not get.
        """
        state = (await self.group(topic, name))["state"]
        found = await (await self._store()).resurrect_group(topic, name, catch_up=catch_up)
        if not found:
            raise InvalidGroup(f"group {name!r} of topic {topic!r} is {state}", remedy="only DEAD ones are resurrected")
        return {"missed": found[0]["missed"], "skipped": found[0]["skipped"]}

    async def deliveries(self, topic: str, message_id: int) -> list[dict[str, Any]]:
        """What became of a message of a PUB_SUB topic at each group: who has it, who is done, since when, why not."""
        return await (await self._store()).deliveries(topic, message_id)

    async def message_state(self, topic: str, message_id: int) -> dict[str, Any]:
        """The groups that a message of a PUB_SUB topic is required for, those that are done, and its status."""
        return await (await self._store()).message_state(topic, message_id)

    @asynccontextmanager
    async def _explaining(self, topic: str) -> AsyncIterator[None]:
        """A group that is not there may be so because its topic is not, or is a QUEUE."""
        try:
            yield
        except (GroupNotFound, WrongSemantics):
            if (await self.topic(topic))["semantics"] == "QUEUE":
                raise WrongSemantics(
                    f"topic {topic!r} is a QUEUE, and has no groups",
                    remedy="groups belong to topics with semantics PUB_SUB: postbus topics list",
                ) from None
            raise

    async def rebase(self) -> int:
        """Make the cursors of a database that was restored from a dump work there. Returns how many.

        Nobody may publish or consume meanwhile.
        """
        return await (await self._store()).rebase()

    async def import_outbox(
        self,
        table: str | None = None,
        *,
        layout: str | None = None,
        topic: str | None = None,
        semantics: str | None = None,
        only: Sequence[str] = (),
        options: TopicOptions | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ImportResult:
        """Carry over what is pending in another outbox table of the same database, and how far its groups have come.

        Stop the old consumers first; its publishers may go on, and a second run brings what they wrote meanwhile.
        `layout` is fan-out or simple, and follows from the columns. Events of a simple one go to `topic`, in which
        {event_type} and {aggregate_type} are filled in (the latter alone), with `semantics` QUEUE or PUB_SUB (QUEUE).
        `only` names topics, `options` are for topics that are not there yet. The old table is not changed.
        """
        return await import_outbox(
            await self._store(), table, layout=layout, topic=topic, semantics=semantics, only=only, options=options,
            dry_run=dry_run, progress=progress,
        )  # fmt: skip

    async def workers(self) -> list[dict[str, Any]]:
        """The processes that consume."""
        return await (await self._store()).workers()

    async def messages(
        self, topic: str, *, after_id: int = 0, limit: int = 100, newest: bool = False
    ) -> list[dict[str, Any]]:
        """Messages of a QUEUE that are still there, in whatever state, by id: the first ones, or the newest."""
        return await (await self._store()).messages(topic, after_id=after_id, limit=limit, newest=newest)

    async def log(
        self,
        topic: str,
        *,
        after_id: int = 0,
        after: tuple[int, int] | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> list[dict[str, Any]]:
        """Messages of a PUB_SUB topic that are retained: the first ones, or the newest.

        `after`, the position and index of a message, is found at once; `after_id` looks at all messages.
        """
        return await (await self._store()).log(topic, after_id=after_id, after=after, limit=limit, newest=newest)

    async def dead_letters(
        self, topic: str | None = None, *, group: str | None = None, after_id: int = 0, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Dead letters of a topic, of a group, or of all, by id. One message's of several groups are not parted."""
        return await (await self._store()).dead_letters(topic, group, limit=limit, after_id=after_id)

    async def dead_letter(
        self, message_id: int, *, topic: str | None = None, group: str | None = None
    ) -> dict[str, Any]:
        """One dead letter, with reason and last error; `group` says whose, where several groups gave it up."""
        found = [
            one
            for one in await (await self._store()).dead_letters_by_id(message_id)
            if topic in (None, one["topic"]) and group in (None, one["group_name"])
        ]
        if not found:
            raise MessageNotFound(
                f"there is no dead letter {message_id}" + (f" of group {group!r}" if group else ""),
                remedy="list them: postbus dead-letters list",
            )
        if len(found) > 1:
            whose = ", ".join(" of ".join(filter(None, (one["group_name"], one["topic"]))) for one in found)
            raise InvalidInput(
                f"there are {len(found)} dead letters {message_id}: {whose}",
                remedy="say which one: --group NAME, --topic TOPIC",
            )
        return found[0]

    async def redrive(
        self,
        topic: str,
        *,
        ids: Sequence[int] | None = None,
        reason_like: str | None = None,
        died_after: datetime | None = None,
        died_before: datetime | None = None,
        key: str | None = None,
        max_count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        group: str | None = None,
    ) -> int:
        """Put dead letters back: some by id, some by filter, or all; `rate` spreads them, per second.

        Those of a PUB_SUB topic go back to `group` alone.
        """
        given = {
            "ids": ids, "reason_like": reason_like, "died_after": died_after, "died_before": died_before,
            "key": key, "max_count": max_count, "rate": rate, "dry_run": dry_run, "group_name": group,
        }  # fmt: skip
        store = await self._store()
        filters = {name: value for name, value in given.items() if value is not None}
        async with self._explaining(topic):
            return await store.redrive(topic, filters)

    async def purge_dead_letters(
        self,
        topic: str,
        *,
        ids: Sequence[int] | None = None,
        died_before: datetime | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete dead letters for good."""
        store = await self._store()
        return await store.purge_dead_letters(topic, ids=ids, died_before=died_before, dry_run=dry_run)

    async def sweeping(self) -> dict[str, Any]:
        """How sweeping is set."""
        return await (await self._store()).sweeping()

    async def set_sweeping(self, preset: str | None = None, **options: Unpack[SweepingOptions]) -> dict[str, Any]:
        """Set how all processes sweep: a preset, and options besides. Returns what holds then.

        Presets are default, low_throughput, high_throughput and critical. heartbeat_timeout is that of new topics.
        """
        store = await self._store()
        await store.set_sweeping(sweeping_json(preset, options))
        return await store.sweeping()

    async def sweep_health(self) -> dict[str, Any]:
        """Whether sweeping keeps up, the reason if not, what is left over, and what each job has done."""
        store = await self._store()
        return {**await store.sweep_health(), "jobs": await store.sweep_jobs()}

    async def sweep(self) -> dict[str, int]:
        """Run all jobs of sweeping now, whether they are due or not. Returns what they have removed, by job."""
        store = await self._store()
        returned, _ = await store.return_expired()
        removed = {"messages_returned": returned, "finished_rows": 0, "dedup_keys": 0, "groups_died": 0, "leaves": 0}
        more = True
        while more:
            swept = await store.sweep()
            storages = await store.sweep_storages()
            removed["finished_rows"] += swept["finished_rows"]
            removed["dedup_keys"] += swept["dedup_keys"]
            removed["groups_died"] += sum(one["dead"] for one in storages)
            removed["leaves"] += sum(len(one["dropped"]) for one in storages)
            more = swept["more"] or any(one["more"] for one in storages)
        return {**removed, "subscriptions": await store.sweep_subscriptions()}
