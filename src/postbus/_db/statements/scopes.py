"""Statements for scopes that are more, or less, than one topic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from postbus._db.database import Database
from postbus._db.rows import as_structs
from postbus.catch_up import CatchUp
from postbus.options import OnFailure
from postbus.results.groups import GroupState, ScopeInfo
from postbus.scope import Heartbeat, Scope
from postbus.start import Start

_SCOPE = "topic => $2, key => $3, namespace => $4, task => $5, pattern => $6"


class Joined(NamedTuple):
    """A group's subscription to one topic of a scope."""

    topic: str
    subscription_id: int
    lease: timedelta
    heartbeat: timedelta
    max_attempts: int
    lanes: int
    is_limited: bool
    """Whether the subscription is limited to some keys."""
    state: GroupState = "ACTIVE"
    is_new: bool = False
    missed: int | None = None
    skipped: int | None = None


class ScopeNews(NamedTuple):
    """New topics in scopes, each by the index of its scope in the list that was asked for."""

    joined: list[tuple[int, Joined]]
    not_joined: set[int]
    """The indexes of scopes with topics to which the group is not subscribed yet."""


class ScopeStore(Database):
    """Runs statements for scopes."""

    async def subscribe_scope(
        self,
        group: str,
        scope: Scope,
        start: Start,
        on_failure: OnFailure | None = None,
        catch_up: CatchUp | None = None,
    ) -> list[Joined]:
        """Subscribe to all topics in a scope, and to those that come later. `start` must have a mode.

        A group that is subscribed already keeps its options that are not given.
        """
        rows = await self._act_rows(
            f"select * from postbus.subscribe_scope($1, {_SCOPE}, mode => $7, start_at => $8, look_back => $9, "
            "on_failure => $10, catch_up => $11, start_id => $12)",
            group,
            *_parts(scope),
            start.mode,
            start.timestamp,
            start.look_back,
            on_failure,
            None if catch_up is None and on_failure is None else (catch_up or CatchUp()).as_json(),
            start.message_id,
            repeatable=True,
        )
        return [
            _joined(row, row["keys"] is not None, row["state"], row["is_new"], row["missed"], row["skipped"])
            for row in rows
        ]

    async def group_topics(self, group: str, scope: Scope) -> list[str]:
        """The topics in a scope that a group is subscribed to."""
        rows = await self._rows(f"select topic_name from postbus.group_topics($1, {_SCOPE})", group, *_parts(scope))
        return [row["topic_name"] for row in rows]

    async def send_heartbeat(self, group: str, scope: Scope, *, stopped_by: str | None = None) -> list[Heartbeat]:
        """Report that a pulling group is alive in all topics of a scope, or that it was stopped as planned."""
        rows = await self._rows(
            "select * from postbus.send_heartbeat($1, $2, $3, $4, $5, stopped_by => $6)",
            group,
            scope.topic,
            scope.namespace,
            scope.task,
            scope.pattern,
            stopped_by,
        )
        return [Heartbeat(row["topic_name"], row["state"], row["missed"], row["skipped"]) for row in rows]

    async def scope_news(self, scopes: Sequence[tuple[str, Scope]], known: Sequence[int]) -> ScopeNews:
        """The topics in the scopes of groups, except those of known subscriptions."""
        columns = zip(*((group, *_parts(scope)) for group, scope in scopes), strict=True)
        rows = await self._rows(
            "select * from postbus.scope_news($1, $2, $3, $4, $5, $6, $7)", *(list(one) for one in columns), known
        )
        return ScopeNews(
            [(row["scope"] - 1, _joined(row, row["is_limited"])) for row in rows if row["subscription_id"] is not None],
            {row["scope"] - 1 for row in rows if row["subscription_id"] is None},
        )

    async def keys_of(self, subscription_id: int) -> list[str] | None:
        """The keys to which a subscription is limited, or None for all keys."""
        keys = await self._run("select postbus.keys_of($1)", subscription_id)
        return None if keys is None else list(keys)

    async def scopes(self, group: str | None) -> list[ScopeInfo]:
        rows = await self._rows(
            "select * from postbus.scopes where $1::text is null or group_name = $1 order by group_name, recorded_at",
            group,
        )
        return as_structs(ScopeInfo, rows)

    async def forget_scope(self, group: str, scope: Scope, *, cancel: bool) -> int:
        return int(
            await self._act(f"select postbus.forget_scope($1, {_SCOPE}, cancel => $7)", group, *_parts(scope), cancel)
        )

    async def set_scope_state(self, group: str, scope: Scope, state: GroupState) -> int:
        return int(await self._act(f"select postbus.set_scope_state($1, $7, {_SCOPE})", group, *_parts(scope), state))


def _parts(scope: Scope) -> tuple[str | None, ...]:
    return scope.topic, scope.key, scope.namespace, scope.task, scope.pattern


def _joined(row: Any, is_limited: bool, *more: Any) -> Joined:
    return Joined(
        row["topic_name"],
        row["subscription_id"],
        row["lease"],
        row["heartbeat"],
        row["max_attempts"],
        row["lanes"],
        is_limited,
        *more,
    )
