"""The handlers of a bus, of queues and of groups, as `bus.subscribe()` and `bus.group()` register them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack

from postbus._consumers.group_control import GroupControl
from postbus._content.names import check_topic_name
from postbus.catch_up import CatchUp
from postbus.errors import DuplicateHandler, InvalidHandler, InvalidOption
from postbus.group import Filter, Group
from postbus.options import Duration, OnFailure
from postbus.scope import Scope
from postbus.start import Mode, Start
from postbus.subscription import HandlerOptions, Subscription, maker

H = TypeVar("H", bound=Callable[..., Any])


class HandlerRegistry:
    """Checks handlers and their options, and keeps them for the worker that will run them."""

    def __init__(self, groups: GroupControl) -> None:
        self.groups = groups
        self._subscriptions: dict[str, Subscription] = {}

    def __bool__(self) -> bool:
        return bool(self._subscriptions or self.groups)

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The handlers of queues, in the order in which they were registered."""
        return list(self._subscriptions.values())

    def decorator(
        self,
        topic: str | None,
        *,
        name: str | None = None,
        lease: Duration | None = None,
        group: str | None = None,
        key: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        start: Start | str | datetime | int | None = None,
        mode: Mode | None = None,
        look_back: Duration | None = None,
        filter: Filter | None = None,
        on_failure: OnFailure = "block",
        catch_up: CatchUp | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[H], H]:
        """The decorator that `bus.subscribe()` returns: it registers the handler that it is given."""
        if group is None:
            if namespace is not None or task is not None:
                raise InvalidOption("namespaces and tasks are for groups", remedy="give group=…, or a topic")
            check_topic_name(topic or "")
        scope = Scope.of(topic, key=key, namespace=namespace, task=task)
        make = maker(str(scope), lease=lease, **options)
        chosen_start = self.groups.default.start_of(
            start, mode, look_back, is_recorded=scope.is_recorded, is_wide=scope.is_wide
        )
        for_groups = (key, None if start == Start.NOW else start, mode, look_back, filter, catch_up)
        has_group_options = on_failure != "block" or any(one is not None for one in for_groups)

        def register(handler: H) -> H:
            if not callable(handler):
                raise InvalidHandler(f"{handler!r} is not a function", remedy="put the decorator above a function")
            own_name = name or str(getattr(handler, "__qualname__", type(handler).__qualname__))
            if group is None:
                if has_group_options:
                    raise InvalidOption(
                        "key, start, mode, look_back, filter, on_failure and catch_up belong to a group",
                        remedy="give group=…, on a topic with semantics PUB_SUB",
                    )
                self._add_subscription(make(own_name, handler))
                return handler
            if lease is not None:
                raise InvalidOption(
                    "a group has no lease of its own",
                    remedy="set that of the topic: postbus topics set NAME --lease 1m",
                )
            made = Group(self.groups, group, scope, make, filter=filter, on_failure=on_failure, catch_up=catch_up)
            made.add_member(own_name, handler)
            self.groups.add(made, chosen_start)
            return handler

        return register

    def group(
        self,
        name: str,
        topic: str | None,
        *,
        key: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        filter: Filter | None = None,
        on_failure: OnFailure = "block",
        catch_up: CatchUp | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Group:
        """A group without members, which waits for `group.start()`."""
        scope = Scope.of(topic, key=key, namespace=namespace, task=task)
        make = maker(str(scope), lease=None, **options)
        group = Group(self.groups, name, scope, make, filter=filter, on_failure=on_failure, catch_up=catch_up)
        return self.groups.add(group)

    def _add_subscription(self, subscription: Subscription) -> None:
        known = self._subscriptions.setdefault(subscription.topic, subscription)
        if known is not subscription:
            raise DuplicateHandler(
                f"topic {subscription.topic!r} has a handler already: {known.name}",
                remedy="raise its concurrency, or consume another topic",
            )
