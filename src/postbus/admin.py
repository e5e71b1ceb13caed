"""Managing topics, groups and dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Unpack

import msgspec

from postbus._admin.access import AccessAdmin
from postbus._admin.messages import MessageAdmin
from postbus._admin.outbox_import.runner import ImportResult, Progress, import_outbox
from postbus._admin.outbox_import.table import Layout
from postbus._content.names import check_topic_name
from postbus._db.statements.audit import AuditFilters
from postbus._maintenance.sweeper import log_group_events
from postbus.errors import (
    InvalidInput,
    TopicNotEmpty,
    WrongSemantics,
)
from postbus.health import is_well
from postbus.options import Duration, Semantics, TopicOptions, as_json
from postbus.results.access import AuditEntry
from postbus.results.health import SweepCounts, SweepReport, SweepSettings, SystemHealth
from postbus.results.topics import MoveProgress, QueueBacklog, SinkAway, TopicInfo, WorkerInfo
from postbus.sweeping import SweepingOptions, SweepingPreset, sweeping_json


class Admin(MessageAdmin, AccessAdmin):
    """Operators' methods. Reached as `bus.admin`."""

    async def create_topic(self, name: str, **options: Unpack[TopicOptions]) -> None:
        """Create a topic. Needed only where its options differ from the defaults."""
        check_topic_name(name)
        await (await self._store()).create_topic(name, as_json(options))

    async def set_topic(self, name: str, **options: Unpack[TopicOptions]) -> None:
        """Change options of a topic."""
        await (await self._store()).set_topic(name, as_json(options))

    async def move_topic(
        self,
        name: str,
        *,
        groups: Sequence[str] = (),
        hand_over: bool = False,
        dry_run: bool = False,
        **options: Unpack[TopicOptions],
    ) -> QueueBacklog:
        """Make a PUB_SUB topic of a QUEUE while producers and consumers run. Returns what is left in the queue.

        The queue's consumers work that off, or with `hand_over` the first group does. The groups named here wait for
        it, and then get every message that was published since. Until then it may be called again, to hand over after
        all.
        """
        store = await self._store()
        return await store.move_topic(name, _names(groups), as_json(options), hand_over=hand_over, dry_run=dry_run)

    async def continue_move(self, name: str) -> MoveProgress | None:
        """Go on with a topic that moves, as consuming processes do too. Returns what is waited for, if that is known.

        `ended_at` tells when its groups went on.
        """
        return await (await self._store()).continue_move(name)

    async def topics(self, *, namespace: str | None = None, task: str | None = None) -> list[TopicInfo]:
        """All topics, or those of a namespace or a task, with options and what they hold."""
        return await (await self._store()).topics(namespace=namespace, task=task)

    async def pause_topic(self, name: str) -> None:
        """Stop delivery of a QUEUE; publishing goes on. Groups of a PUB_SUB topic are paused each on its own.

        When this returns, nothing more is claimed, and no handler of this bus begins with another message. Other
        processes handle what they have claimed already: at most as many messages as they have slots.
        """
        await self._refuse_log(name, "is not paused as a whole", f"pause its groups: postbus groups pause {name} GROUP")
        await (await self._store()).pause_topic(name)
        await self._halt(name)

    async def resume_topic(self, name: str) -> None:
        """Start delivery of a paused QUEUE again."""
        await self._refuse_log(
            name, "is not paused as a whole", f"resume its groups: postbus groups resume {name} GROUP"
        )
        await (await self._store()).resume_topic(name)

    async def purge_topic(self, name: str, *, dry_run: bool = False) -> int:
        """Delete what waits in a QUEUE. Returns how many messages that is."""
        await self._refuse_log(
            name,
            "has no messages that wait: each group has its own position",
            f"move a group on: postbus groups seek {name} GROUP --to now; retention drops the messages",
        )
        return await (await self._store()).purge_topic(name, dry_run=dry_run)

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic; with `force` also its messages and groups."""
        try:
            await (await self._store()).delete_topic(name, force=force)
        except TopicNotEmpty as error:
            if await self.semantics(name) == "PUB_SUB":
                remedy = "delete it together with its log, its groups and their dead letters: --force"
                raise TopicNotEmpty(error.message, remedy=remedy) from None
            raise

    async def _refuse_log(self, name: str, why: str, remedy: str) -> None:
        if await self.semantics(name) == "PUB_SUB":
            raise WrongSemantics(f"topic {name!r} is PUB_SUB, and {why}", remedy=remedy)

    async def rebase(self, *, as_copy: bool = False) -> int:
        """Make the cursors of a database that was restored from a dump work there. Returns how many.

        Nobody may publish or consume meanwhile. Messages keep their `event_id`, since the database goes on instead of
        the original. `as_copy` is for a copy that runs while the original goes on: its messages get others.
        """
        return await (await self._store()).rebase(as_copy=as_copy)

    async def import_outbox(
        self,
        table: str | None = None,
        *,
        layout: Layout | None = None,
        topic: str | None = None,
        semantics: Semantics | None = None,
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
            await self._store(), table, layout=layout, topic=topic, semantics=semantics, only=_names(only),
            options=options, dry_run=dry_run, progress=progress,
        )  # fmt: skip

    async def health(self, stuck_after: Duration = timedelta(hours=1)) -> SystemHealth:
        """Whether somebody should look: what is wrong with groups, and whether sweeping keeps up."""
        findings = await self.group_findings(stuck_after)
        sweeping = await (await self._store()).sweep_health()
        return SystemHealth(healthy=is_well(findings, sweeping), findings=findings, sweeping=sweeping)

    async def audit(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        actor: str | None = None,
        action: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        topics: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        after_id: int = 0,
        before_id: int | None = None,
        limit: int = 100,
        newest: bool = True,
    ) -> list[AuditEntry]:
        """The audit log: who did what. The newest entries first, or the oldest.

        `actor` is a part of a login, a role or an actor; `action` is one, such as topic.set, or topic for all of that
        kind; `topics` and `groups` are patterns, in which * stands for any text. A page goes on at `before_id`, or at
        `after_id`.
        """
        filters = AuditFilters(
            since, until, actor, action, topic, group,
            topics=None if topics is None else _names(topics), groups=None if groups is None else _names(groups),
        )  # fmt: skip
        store = await self._store()
        return await store.audit(filters, after_id=after_id, before_id=before_id, limit=limit, newest=newest)

    async def workers(self) -> list[WorkerInfo]:
        """The processes that consume."""
        return await (await self._store()).workers()

    async def sinks_away(self) -> list[SinkAway]:
        """The sinks that relays cannot reach: since when, and why."""
        return await (await self._store()).sinks_away()

    async def sweeping(self) -> SweepSettings:
        """How sweeping is set."""
        return await (await self._store()).sweeping()

    async def set_sweeping(
        self, preset: SweepingPreset | None = None, **options: Unpack[SweepingOptions]
    ) -> SweepSettings:
        """Set how all processes sweep: a preset, and options besides. Returns what holds then.

        Presets are default, low_throughput, high_throughput and critical. heartbeat_timeout is that of new topics.
        """
        store = await self._store()
        await store.set_sweeping(sweeping_json(preset, options))
        return await store.sweeping()

    async def sweep_health(self) -> SweepReport:
        """Whether sweeping keeps up, the reason if not, what is left over, and what each job has done."""
        store = await self._store()
        return SweepReport(**msgspec.structs.asdict(await store.sweep_health()), jobs=await store.sweep_jobs())

    async def sweep(self) -> SweepCounts:
        """Run all jobs of sweeping now, whether they are due or not. Returns what they have removed."""
        store = await self._store()
        returned, _ = await store.return_expired()
        removed: Counter[str] = Counter()
        more = True
        while more:
            swept = await store.sweep()
            storages = await store.sweep_storages()
            await log_group_events(store)
            for name in ("finished_rows", "dedup_keys", "inbox_records"):
                removed[name] += swept[name]
            removed["groups_died"] += sum(one["dead"] for one in storages)
            removed["partitions"] += sum(len(one["dropped"]) for one in storages)
            removed["thinned"] += sum(one["thinned"] for one in storages)
            more = swept["more"] or any(one["more"] for one in storages)
        return SweepCounts(messages_returned=returned, **removed, subscriptions=await store.sweep_subscriptions())


def _names(given: Sequence[str]) -> list[str]:
    """Names in a list: one alone would be taken for a name per letter."""
    if isinstance(given, str):
        raise InvalidInput(f"{given!r} is one name, and not a list of them", remedy=f"give [{given!r}]")
    return list(given)
