"""Routes: popping messages, and settling them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Request
from litestar.params import JSONBody, QueryParameter

from postbus._handling.handling import as_delay
from postbus.errors import InvalidInput, InvalidOption, LeaseLost
from postbus.pull import Delivery, check_lease
from postbus.scope import Heartbeat
from postbus.server.messages import message_of
from postbus.server.routing import GroupName, InCall, TopicName, route
from postbus.server.shapes import (
    DeadLetterBody,
    ExtendBody,
    LeasedMessage,
    PopBody,
    RetryBody,
    ScopeHeartbeat,
    ScopePopBody,
    SettleBody,
    TransactionBody,
)
from postbus.server.views.consuming import (
    Committed,
    Delivered,
    Heartbeats,
    PoppedMessages,
    PushedIds,
    Retried,
    Settled,
    TopicHeartbeat,
)
from postbus.server.views.messages import payload_of
from postbus.start import Start

_TAG = "consuming"

_Last = Annotated[bool, QueryParameter(description="The consumer stops as planned: its silence is expected.")]


@route("POST", "/v1/topics/{topic:str}/pop", errors=(404, 409, 413), tag=_TAG)
async def pop(
    call: InCall, request: Request[Any, Any, Any], topic: TopicName, data: JSONBody[PopBody]
) -> PoppedMessages:
    """Take messages of a QUEUE, or for a group of a PUB_SUB topic. They are yours until their lease ends.

    The first pop of a group subscribes it.
    """
    return await _popped(call, request, data, topic)


@route("POST", "/v1/pop", errors=(404, 409, 413), tag=_TAG)
async def pop_scope(call: InCall, request: Request[Any, Any, Any], data: JSONBody[ScopePopBody]) -> PoppedMessages:
    """Take messages for a group of all topics of a namespace, of a task, or whose names match a pattern.

    Topics that are created later are included. The token must be for all topics.
    """
    return await _popped(call, request, data, data.pattern, data.namespace, data.task)


@route("POST", "/v1/topics/{topic:str}/groups/{group:str}/heartbeat", errors=(404, 409), tag=_TAG)
async def heartbeat(call: InCall, topic: TopicName, group: GroupName, last: _Last = False) -> Heartbeats:
    """Keep a group alive whose consumer will not pop, settle or extend for a while. Revives a DEAD group.

    With last, this consumer stops as planned: its group is shown as stopped until its next sign of life.
    """
    return _heartbeats(await call.bus.heartbeat(topic, group=group, last=last, member=call.caller.name))


@route("POST", "/v1/heartbeat", errors=(404, 409), tag=_TAG)
async def heartbeat_scope(call: InCall, data: JSONBody[ScopeHeartbeat], last: _Last = False) -> Heartbeats:
    """The same for a group in all topics of a namespace, of a task, or whose names match a pattern."""
    call.caller.check_group(data.group)
    told = await call.bus.heartbeat(
        data.pattern, group=data.group, namespace=data.namespace, task=data.task, last=last, member=call.caller.name
    )
    return _heartbeats(told)


def _heartbeats(told: Sequence[Heartbeat]) -> Heartbeats:
    return Heartbeats(
        topics=[
            TopicHeartbeat(topic=one.topic, state=one.state, missed=one.missed, skipped=one.skipped) for one in told
        ]
    )


def _first_position(data: PopBody) -> Start | datetime | None:
    """The position at which a new group begins."""
    if (data.mode == "message") != (data.message_id is not None):
        raise InvalidOption(
            "mode 'message' has no message_id" if data.message_id is None else "message_id is for mode 'message'",
            remedy="give a message_id with mode 'message', and with no other mode",
        )
    if data.message_id is not None:
        return Start.from_message(int(data.message_id))
    return data.timestamp


async def _popped(
    call: InCall,
    request: Request[Any, Any, Any],
    data: PopBody,
    topic: str | None,
    namespace: str | None = None,
    task: str | None = None,
) -> PoppedMessages:
    call.caller.check_group(data.group)
    call.server.quotas.check_batch(data.count)
    # A waiting caller's messages are settled only once its token was checked again.
    acks_later = data.auto_ack and data.wait > 0 and not call.server.settings.is_open
    popping = call.bus.pop(
        topic, group=data.group, batch=data.count, wait=data.wait, lease=data.lease, key=data.key,
        member=call.caller.name[:300], auto_ack=data.auto_ack and not acks_later, look_back=data.look_back,
        namespace=namespace, task=task, start=_first_position(data),
        mode=None if data.message_id is not None else data.mode,
    ).for_others()  # fmt: skip
    if data.wait:
        with call.server.quotas.polling(call.caller.name):
            found: Sequence[Delivery] = await call.server.polls.wait(request, popping, call)
    else:
        found = await popping
    if acks_later and found:
        return PoppedMessages(messages=await _acked(call, found))
    for one in found:
        call.server.polls.note(one, data.group)
    return PoppedMessages(messages=[_delivered(one) for one in found])


async def _acked(call: InCall, found: Sequence[Delivery]) -> list[Delivered]:
    """Ack what was popped with auto_ack. Messages that another consumer has by now are left out."""
    store = await call.bus.connect()
    lost: set[int] = set()
    for token in {one.token for one in found if one.token is not None}:
        lost |= await store.ack(token, [one.message.id for one in found if one.token == token])
    kept = [_delivered(one) for one in found if one.message.id not in lost]
    return [msgspec.structs.replace(one, token=None, lease_ends_at=None) for one in kept]


@route("POST", "/v1/ack", errors=(409, 413), tag=_TAG)
async def ack(call: InCall, data: JSONBody[SettleBody]) -> Settled:
    """Acknowledge the messages. Those of several leases are settled together."""
    leases = await _leases(call, data.messages)
    store = await call.bus.connect()
    if len(leases) == 1:
        [(token, ids)] = leases.items()
        lost = await store.ack(token, ids)
    else:
        async with call.bus.transaction() as conn:
            lost = {one for token, ids in leases.items() for one in await store.ack(token, ids, conn=conn)}
    call.server.polls.wake(call.bus, leases)
    return _settled(data.messages, lost)


@route("POST", "/v1/retry", errors=(409, 413), tag=_TAG)
async def retry(call: InCall, data: JSONBody[RetryBody]) -> Retried:
    """Try the messages again, later. Those whose attempts are used up become dead letters."""
    delay = as_delay(data.delay)
    store = await call.bus.connect()
    outcomes: dict[int, str] = {}

    async def settle(token: UUID, ids: list[int]) -> set[int]:
        outcomes.update(found := await store.retry(token, ids, delay=delay, error=data.error))
        return {one for one, outcome in found.items() if outcome == "lost"}

    settled = await _settled_by_lease(call, data.messages, settle)
    dead = [str(one) for one, outcome in outcomes.items() if outcome == "dead"]
    return Retried(settled=settled.settled, lost=settled.lost, dead=dead)


@route("POST", "/v1/dead-letter", errors=(409, 413), tag=_TAG)
async def dead_letter(call: InCall, data: JSONBody[DeadLetterBody]) -> Settled:
    """Give the messages up, at once."""
    store = await call.bus.connect()

    async def settle(token: UUID, ids: list[int]) -> set[int]:
        return await store.dead_letter(token, ids, data.reason, data.error)

    return await _settled_by_lease(call, data.messages, settle)


@route("POST", "/v1/release", errors=(409, 413), tag=_TAG)
async def release(call: InCall, data: JSONBody[SettleBody]) -> Settled:
    """Give the messages back, as if they had not been popped."""
    store = await call.bus.connect()
    return await _settled_by_lease(call, data.messages, store.release, gives_back=True)


@route("POST", "/v1/extend", errors=(409, 413), tag=_TAG)
async def extend(call: InCall, data: JSONBody[ExtendBody]) -> Settled:
    """Extend the leases of the messages, counted from now. All messages of a lease are extended together."""
    length = check_lease(data.lease)
    leases = await _leases(call, data.messages)
    store = await call.bus.connect()
    lost = await store.extend(list(leases), length)
    return _settled(data.messages, [one for token in lost for one in leases[token]])


@route("POST", "/v1/transaction", errors=(409, 413), tag=_TAG)
async def transaction(call: InCall, data: JSONBody[TransactionBody]) -> Committed:
    """Ack and push together, also across topics: all of it is committed, or nothing is.

    If one of the messages is no longer yours, the request fails as a whole.
    """
    _check_parts(call, data)
    store = await call.bus.connect()
    pushed = []
    leases = await _leases(call, data.ack)
    async with call.bus.transaction() as conn:
        for token, ids in leases.items():
            if await store.ack(token, ids, conn=conn):
                raise _lost()
        for part in data.push:
            found = await call.bus.publish_many(conn, part.topic, [message_of(one) for one in part.messages])
            pushed.append(PushedIds(ids=[str(one) for one in found]))
    call.server.polls.wake(call.bus, leases)
    return Committed(acked=len(data.ack), pushed=pushed)


def _delivered(one: Delivery) -> Delivered:
    message = one.message
    return Delivered(
        id=str(message.id),
        event_id=message.event_id,
        topic=message.topic,
        key=message.key,
        headers=dict(message.headers),
        correlation_id=message.correlation_id,
        published_at=message.published_at,
        content_type=message.content_type,
        token=None if one.token is None else str(one.token),
        lease_ends_at=one.ends_at,
        attempt=message.attempt,
        priority=message.priority,
        source=message.source,
        **payload_of(message.payload, message.content_type),
    )


def _check_parts(call: InCall, data: JSONBody[TransactionBody]) -> None:
    if not data.ack and not data.push:
        raise InvalidInput("the transaction does nothing", remedy="give ack, push, or both")
    if data.ack:
        call.caller.check_role(("consumer",))
    if data.push:
        call.caller.check_role(("producer",))
    for part in data.push:
        call.caller.check_topic(part.topic)
    call.server.quotas.check_batch(len(data.ack) + sum(len(part.messages) for part in data.push))


async def _leases(call: InCall, messages: list[LeasedMessage]) -> dict[UUID, list[int]]:
    """Messages by the token of their lease, which the caller's topics and groups have to allow."""
    call.server.quotas.check_batch(len(messages))
    leases: dict[UUID, list[int]] = {}
    for one in messages:
        leases.setdefault(one.token, []).append(int(one.id))
    await call.check_leases(leases)
    # Whoever locks several leases locks them in the order of their tokens.
    return dict(sorted(leases.items()))


async def _settled_by_lease(
    call: InCall,
    messages: list[LeasedMessage],
    settle: Callable[[UUID, list[int]], Awaitable[set[int]]],
    *,
    gives_back: bool = False,
) -> Settled:
    """Settle messages, one lease after the other. `settle` returns those that are lost."""
    leases = await _leases(call, messages)
    lost: set[int] = set()
    for token, ids in leases.items():
        lost |= await settle(token, ids)
    call.server.polls.wake(call.bus, leases, gives_back=gives_back)
    return _settled(messages, lost)


def _settled(messages: list[LeasedMessage], lost: Iterable[int]) -> Settled:
    """The outcome of a settlement. If nothing was settled at all, that is an error."""
    names = [str(one) for one in sorted(set(lost))]
    count = len({int(one.id) for one in messages})
    if len(names) == count:
        raise _lost()
    return Settled(settled=count - len(names), lost=names)


def _lost() -> LeaseLost:
    return LeaseLost(
        "the lease is lost: another consumer has the message, or it is done",
        remedy="discard what you did; next time pop with a longer lease, or extend it",
    )


ROUTES = [pop, pop_scope, heartbeat, heartbeat_scope, ack, retry, dead_letter, release, extend, transaction]
