"""Looking after scopes: what groups subscribe to beyond one topic, and where they start."""

from __future__ import annotations

from datetime import datetime

from postbus._admin.base import AdminBase
from postbus.catch_up import CatchUp
from postbus.options import Duration, OnFailure
from postbus.results.groups import ScopeInfo
from postbus.scope import Scope
from postbus.start import Mode, Start


class ScopeAdmin(AdminBase):
    """Operators' methods for scopes. Reached as `bus.admin`."""

    async def subscribe_group(
        self,
        group: str,
        topic: str | None = None,
        *,
        key: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        pattern: str | None = None,
        start: Start | datetime | str | int | None = None,
        mode: Mode | None = None,
        look_back: Duration | None = None,
        on_failure: OnFailure = "block",
        catch_up: CatchUp | None = None,
    ) -> list[str]:
        """Subscribe a group before a process works for it. Returns the topics that it is subscribed to.

        What a scope is, and where a group starts in it, is explained at `bus.subscribe()`. That is recorded: a group
        that has a record of this scope keeps it.
        """
        scope = Scope.of(topic, key=key, namespace=namespace, task=task, pattern=pattern)
        chosen = self._default.start_of(start, mode, look_back, is_recorded=True, is_wide=scope.is_wide)
        store = await self._store()
        return [one.topic for one in await store.subscribe_scope(group, scope, chosen, on_failure, catch_up)]

    async def scopes(self, group: str | None = None) -> list[ScopeInfo]:
        """Return the scopes of all groups, or of one, with the recorded mode and the topics."""
        return await (await self._store()).scopes(group)

    async def forget_scope(
        self,
        group: str,
        topic: str | None = None,
        *,
        key: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        pattern: str | None = None,
        cancel: bool = False,
    ) -> int:
        """Forget a group's record of a scope: no further topics join by it, and another mode can be recorded.

        What it is subscribed to stays, unless `cancel` ends that too. Returns how many subscriptions that are.
        """
        scope = Scope.of(topic, key=key, namespace=namespace, task=task, pattern=pattern)
        return await (await self._store()).forget_scope(group, scope, cancel=cancel)
