"""The states of a group: every way to request another one, in every state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cli.helpers import Cli
from postbus import Bus, GroupNotFound, InvalidGroup, PostbusError
from support.log_sql import create_topic, sweep

ACTIVE, PAUSED, DEAD, CANCELLED = STATES = ("ACTIVE", "PAUSED", "DEAD", "CANCELLED")

PAUSE_OR_CANCEL = "pause an ACTIVE subscription, resume a PAUSED one, or cancel it"
COMES_BACK = "start its worker, or: postbus groups resurrect t g; or cancel it"
IS_FINAL = "it was CANCELLED, which is final; make a new one: postbus groups subscribe g t"
LEAVE_ALONE = "it is alive: nothing has to be done"
RESUME = "let it go on: postbus groups resume t g"

# What each request leads to from ACTIVE, PAUSED, DEAD and CANCELLED: a state, or the remedy of its refusal.
WISHES = {
    "pause": (PAUSED, PAUSED, COMES_BACK, IS_FINAL),
    "resume": (ACTIVE, ACTIVE, COMES_BACK, IS_FINAL),
    "cancel": (CANCELLED, CANCELLED, CANCELLED, IS_FINAL),
    "die": (PAUSE_OR_CANCEL, PAUSE_OR_CANCEL, DEAD, IS_FINAL),
    "resurrect": (LEAVE_ALONE, RESUME, ACTIVE, IS_FINAL),
    "nonsense": (PAUSE_OR_CANCEL, PAUSE_OR_CANCEL, COMES_BACK, IS_FINAL),
    "nothing": (PAUSE_OR_CANCEL, PAUSE_OR_CANCEL, COMES_BACK, IS_FINAL),
}
# Events that happen to a group without a request: nothing is refused.
EVENTS = {
    "heartbeat": (ACTIVE, PAUSED, ACTIVE, CANCELLED),
    "missed heartbeats": (DEAD, PAUSED, DEAD, CANCELLED),
    "subscribe": (ACTIVE, PAUSED, ACTIVE, CANCELLED),
}
TO: dict[str, Any] = {
    "pause": PAUSED,
    "resume": ACTIVE,
    "cancel": CANCELLED,
    "die": DEAD,
    "nonsense": "OTHER",
    "nothing": None,
}


@pytest.fixture
def cli(dsn: str, tmp_path: Path) -> Cli:
    return Cli(dsn, tmp_path)


@pytest.fixture
async def subscription(conn: Any) -> int:
    await create_topic(conn)
    id: int = await conn.fetchval("select subscription_id from postbus.subscribe('t', 'g')")
    return id


async def bring_to(conn: Any, subscription: int, state: str) -> None:
    """Bring a group to a state in the natural way, except that death is set at once."""
    if state == DEAD:
        await conn.execute("update postbus.subscription set state = 'DEAD' where id = $1", subscription)
    elif state != ACTIVE:
        await conn.execute("select postbus.set_group_state('t', 'g', $1)", state)


async def by_sql(bus: Bus, conn: Any, cli: Cli, wish: str) -> None:
    store = await bus.connect()
    if wish in TO:
        await store.set_group_state("t", "g", TO[wish])


async def by_python(bus: Bus, conn: Any, cli: Cli, wish: str) -> None:
    ways: dict[str, Callable[[str, str], Awaitable[Any]]] = {
        "pause": bus.admin.pause_group,
        "resume": bus.admin.resume_group,
        "cancel": bus.admin.cancel_group,
        "resurrect": bus.admin.resurrect_group,
    }
    await ways[wish]("t", "g")


async def by_command(bus: Bus, conn: Any, cli: Cli, wish: str) -> None:
    asked = await cli.quick("groups", wish, "t", "g", "--json", *(["--yes"] if wish == "cancel" else []))
    if asked.code != 0:
        error = asked.failed(3 if asked.error["code"] == GroupNotFound.code else 4).error
        raise (GroupNotFound if asked.code == 3 else InvalidGroup)(error["message"], remedy=error["remedy"])


Ask = Callable[[Bus, Any, Cli, str], Awaitable[None]]
_ASKED = [
    *((by_sql, wish) for wish in TO),
    *((way, wish) for way in (by_python, by_command) for wish in ("pause", "resume", "cancel", "resurrect")),
]


@pytest.mark.parametrize(("ask", "wish"), _ASKED, ids=[f"{wish} {way.__name__}" for way, wish in _ASKED])
async def test_state_request_is_granted_or_refused_with_a_remedy(
    bus: Bus, conn: Any, cli: Cli, subscription: int, ask: Ask, wish: str
) -> None:
    """Each way of requesting is tried in every state."""
    for place, state in enumerate(STATES):
        await bring_to(conn, subscription, state)
        leads_to = WISHES[wish][place]
        if leads_to in STATES:
            await ask(bus, conn, cli, wish)
        else:
            with pytest.raises(PostbusError) as refused:
                await ask(bus, conn, cli, wish)
            kind = GroupNotFound if state == CANCELLED else InvalidGroup
            assert isinstance(refused.value, kind), f"{state}: {refused.value}"
            assert refused.value.remedy == leads_to, state
        row = await conn.fetchrow("select state, id from postbus.subscription order by id desc limit 1")
        assert row["state"] == (leads_to if leads_to in STATES else state), state
        if row["state"] == CANCELLED and state != CANCELLED:
            subscription = await conn.fetchval("select subscription_id from postbus.subscribe('t', 'g')")
        await conn.execute("update postbus.subscription set state = 'ACTIVE' where state <> 'CANCELLED'")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
async def test_each_event_leads_to_its_state(conn: Any, subscription: int, event: str, state: str) -> None:
    """Heartbeats, missed heartbeats and subscriptions change the state as the table says."""
    await bring_to(conn, subscription, state)
    match event:
        case "heartbeat":
            beat = "select postbus.group_heartbeat(array[$1::bigint], '{}', '{}', '{}', '{}', '{}', '{}', '{}')"
            await conn.execute(beat, subscription)
        case "missed heartbeats":
            storage = await conn.fetchval("select storage_id from postbus.topic where name = 't'")
            await conn.execute("update postbus.subscription set seen_at = seen_at - interval '1 hour', missed = 2")
            await sweep(conn, storage)
        case "subscribe":
            again = await conn.fetchval("select subscription_id from postbus.subscribe('t', 'g')")
            assert (again == subscription) is (state != CANCELLED), "a cancelled one does not come back"
    now = await conn.fetchval("select state from postbus.subscription where id = $1", subscription)
    assert now == EVENTS[event][STATES.index(state)]
