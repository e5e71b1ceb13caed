"""The handlers of a bus, of queues and of groups, as `bus.subscribe()` and `bus.group()` register them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from postbus._consumers.group_control import GroupControl
from postbus._content.names import check_topic_name
from postbus.errors import DuplicateHandler, InvalidHandler, InvalidOption
from postbus.group import Group, GroupOptions, SubscribeOptions
from postbus.scope import Scope
from postbus.start import Start
from postbus.subscription import Maker, Subscription, maker

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

    def decorator(self, topic: str | None, **options: Unpack[SubscribeOptions]) -> Callable[[H], H]:
        """The decorator that `bus.subscribe()` returns: it registers the handler that it is given."""
        _check_known(options, SubscribeOptions.__annotations__)
        name, group, lease = options.get("name"), options.get("group"), options.get("lease")
        start, mode, look_back = options.get("start"), options.get("mode"), options.get("look_back")
        if group is None:
            if options.get("namespace") is not None or options.get("task") is not None:
                raise InvalidOption("namespaces and tasks are for groups", remedy="give group=…, or a topic")
            check_topic_name(topic or "")
        scope = _scope_of(topic, options)
        make = maker(str(scope), options, lease)
        chosen_start = self.groups.default.start_of(
            start, mode, look_back, is_recorded=scope.is_recorded, is_wide=scope.is_wide
        )
        of_group = (options.get("key"), options.get("filter"), options.get("catch_up"))
        for_groups = (*of_group, None if start == Start.NOW else start, mode, look_back)
        has_group_options = options.get("on_failure", "block") != "block" or any(one is not None for one in for_groups)

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
            made = self._group(group, scope, make, options)
            made.add_member(own_name, handler)
            self.groups.add(made, chosen_start)
            return handler

        return register

    def group(self, name: str, topic: str | None, **options: Unpack[GroupOptions]) -> Group:
        """A group without members, which waits for `group.start()`."""
        _check_known(options, GroupOptions.__annotations__)
        scope = _scope_of(topic, options)
        return self.groups.add(self._group(name, scope, maker(str(scope), options), options))

    def _group(self, name: str, scope: Scope, make: Maker, options: GroupOptions) -> Group:
        return Group(
            self.groups,
            name,
            scope,
            make,
            filter=options.get("filter"),
            on_failure=options.get("on_failure", "block"),
            catch_up=options.get("catch_up"),
        )

    def _add_subscription(self, subscription: Subscription) -> None:
        known = self._subscriptions.setdefault(subscription.topic, subscription)
        if known is not subscription:
            raise DuplicateHandler(
                f"topic {subscription.topic!r} has a handler already: {known.name}",
                remedy="raise its concurrency, or consume another topic",
            )


def _check_known(options: Mapping[str, object], known: Mapping[str, object]) -> None:
    if unknown := options.keys() - known.keys():
        raise TypeError(f"there is no option {min(unknown)!r}: there are {', '.join(known)}")


def _scope_of(topic: str | None, options: GroupOptions) -> Scope:
    return Scope.of(topic, key=options.get("key"), namespace=options.get("namespace"), task=options.get("task"))
