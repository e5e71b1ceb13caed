"""Scopes and modes as programs give them: mistakes are reported at registration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postbus import Bus, DuplicateHandler, InvalidInput, InvalidOption, Start
from postbus.scope import Scope
from postbus.start import Default
from support.naming import steady

_TIME = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def idle() -> Bus:
    """Return a bus that never connects."""
    return Bus("postgresql://nowhere/")


async def handler(payload: Any) -> None: ...


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "a group subscribes to"),
        ({"topic": "t", "task": "x"}, "a group subscribes to"),
        ({"namespace": "n", "task": "x"}, "a group subscribes to"),
        ({"namespace": "no name"}, "bad namespace name"),
        ({"task": 5}, "bad task name"),
        ({"topic": "a b"}, "bad topic name"),
        ({"topic": "orders*"}, "bad pattern"),
        ({"topic": "a..*"}, "bad pattern"),
        ({"topic": "#." + "x" * 200}, "bad pattern"),
        ({"topic": "a.*", "key": "k"}, "a key belongs to one topic"),
        ({"namespace": "n", "key": "k"}, "a key belongs to one topic"),
        ({"topic": "t", "key": 7}, "key 7 is not a text"),
        ({"topic": "t", "mode": "old"}, "mode 'old' is not known"),
        ({"topic": "t", "mode": "timestamp"}, "has no time"),
        ({"topic": "t", "mode": "timestamp", "start": "FROM_NOW"}, "is not a time"),
        ({"topic": "t", "mode": "timestamp", "start": datetime(2030, 1, 1)}, "time zone"),
        ({"topic": "t", "mode": "new", "start": Start.NOW}, "start and mode are both given"),
        ({"topic": "t", "mode": "all", "look_back": 3}, "does not look back"),
        ({"topic": "t", "mode": "new", "look_back": -1}, "is negative"),
        ({"topic": "t", "look_back": 1}, "look_back is for mode='new'"),
        ({"topic": "a.*", "start": 7}, "no message in common"),
        ({"topic": "a.*", "start": "soon"}, "start 'soon' is not known"),
    ],
    ids=steady,
)
def test_bad_scope_or_start_is_refused(idle: Bus, given: dict[str, Any], why: str) -> None:
    """It is refused with a remedy, before anything runs."""
    with pytest.raises(InvalidInput) as refused:
        idle.subscribe(group="g", **given)(handler)
    assert why in refused.value.message
    assert refused.value.remedy
    if not given.keys() & {"mode", "start", "look_back"}:
        with pytest.raises(InvalidInput, match=why):
            idle.group("g", **given)


_OF_GROUPS: list[dict[str, Any]] = [
    {},
    {"namespace": "n"},
    {"task": "n"},
    {"topic": "a.*"},
    {"topic": "t", "key": "k"},
    {"topic": "t", "mode": "new"},
    {"topic": "t", "look_back": 1},
]


@pytest.mark.parametrize("given", _OF_GROUPS, ids=str)
def test_scopes_and_modes_are_refused_without_a_group(idle: Bus, given: dict[str, Any]) -> None:
    """A handler of a queue has one topic, and no position in it."""
    with pytest.raises(InvalidInput):
        idle.subscribe(**given)(handler)


def test_group_can_register_a_topic_only_once(idle: Bus) -> None:
    """One group in one process cannot consume two keys of a topic, or the same pattern twice, separately."""
    idle.subscribe("t", group="g", key="a")(handler)
    idle.subscribe("a.*", group="g")(handler)
    again: list[dict[str, Any]] = [{"topic": "t", "key": "b"}, {"topic": "t"}, {"topic": "a.*"}]
    for scope in again:
        with pytest.raises(DuplicateHandler):
            idle.subscribe(group="g", **scope)(handler)
    idle.subscribe("a.#", group="g")(handler)
    idle.subscribe(namespace="a", group="g")(handler)


@pytest.mark.parametrize(
    ("start", "mode", "at", "back"),
    [
        (Start.NOW, "new", None, 0.0),
        (Start.BEGINNING, "all", None, 0.0),
        (_TIME, "timestamp", _TIME, 0.0),
        (None, "all", None, 0.0),
    ],
    ids=steady,
)
def test_start_maps_to_a_mode_for_several_topics(start: Any, mode: str, at: datetime | None, back: float) -> None:
    """Only the mode `new` looks back; `Start.NOW` means from now on."""
    found = Default(None).start_of(start, None, None, is_recorded=True, is_wide=False)
    assert (found.mode, found.timestamp, found.look_back) == (mode, at, timedelta(seconds=back))
    assert Default("new").start_of(None, None, None, is_recorded=True, is_wide=False).look_back == timedelta(seconds=4)


def test_bad_default_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment nor the caller can set an unknown mode, or one that needs a time."""
    modes: list[Any] = ["old", "timestamp"]
    for mode in modes:
        with pytest.raises(InvalidOption, match="default mode"):
            Bus.open("postgresql://nowhere/", default_mode=mode)
    monkeypatch.setenv("POSTBUS_DEFAULT_SUBSCRIPTION_MODE", "old")
    with pytest.raises(InvalidOption, match="'old'"):
        Bus.open("postgresql://nowhere/")


def test_scope_is_printed_by_its_kind() -> None:
    """A topic is printed by its name, and other scopes by kind and name."""
    scopes = [Scope.of("t"), Scope.of("t", key="k"), Scope.of(namespace="n"), Scope.of(task="x"), Scope.of("a.*")]
    assert [str(one) for one in scopes] == ["t", "t", "namespace n", "task x", "a.*"]
