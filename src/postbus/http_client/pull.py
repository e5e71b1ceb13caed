"""Popping and settling over HTTP."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from postbus._db.statements.queue import PulledLease
from postbus._publish.statements import publish_one
from postbus._pull.lease import PoppedLease
from postbus._pull.pull_client import PullClient
from postbus._pull.request import PopRequest
from postbus._pull.settlements import Settlement
from postbus._runtime.tasks import hold_cancellation
from postbus.errors import InvalidInput, LeaseLost
from postbus.http_client.send import as_outgoing, as_wire
from postbus.http_client.wire import Answer, Wire, path_of
from postbus.message import Message
from postbus.scope import Heartbeat, Scope

_LONGEST_POLL = 20.0  # seconds that one request waits: proxies cut longer ones off
_PATHS = {"ack": "ack", "retry": "retry", "release": "release", "dead_letter": "dead-letter"}


class Delivered(msgspec.Struct, kw_only=True):
    """A message as the server delivers it."""

    id: str
    topic: str
    token: UUID | None
    lease_ends_at: datetime | None
    attempt: int
    priority: int
    key: str | None
    headers: dict[str, str]
    correlation_id: str | None
    published_at: datetime
    content_type: str
    source: str
    payload: msgspec.Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET

    def as_message(self) -> Message:
        return Message(
            int(self.id), self.topic, self._bytes(), self.content_type, self.key, self.headers, self.correlation_id,
            self.priority, self.attempt, self.published_at, self.source,
        )  # fmt: skip

    def _bytes(self) -> bytes:
        if not isinstance(self.payload, UnsetType):
            return bytes(self.payload)
        if not isinstance(self.text, UnsetType):
            return self.text.encode()
        return base64.b64decode(str(self.base64))


class _Popped(msgspec.Struct):
    messages: list[Delivered]


class _Settled(msgspec.Struct):
    lost: list[str] = []


class HttpPuller(PullClient):
    """Pops by requests to a server."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(HttpBackend(wire))
        self._wire = wire

    async def heartbeat(self, scope: Scope, group: str, *, last: bool) -> list[Heartbeat]:
        """Report that a group is alive or, with `last`, that this consumer of it stops as planned."""
        path, body = path_of("topics", str(scope), "groups", group, "heartbeat"), None
        if scope.is_wide:
            path = path_of("heartbeat")
            body = {"group": group, "namespace": scope.namespace, "task": scope.task, "pattern": scope.pattern}
        answer = await self._wire.ask("POST", path, body, is_repeatable=True, last=last or None)
        return msgspec.convert(answer.as_json()["topics"], list[Heartbeat])

    async def _report_stopped(self, scope: Scope, group: str, member: str | None) -> None:
        await self.heartbeat(scope, group, last=True)  # the server knows who calls

    async def pop(self, request: PopRequest) -> list[PulledLease]:
        """Take messages. If there are none, wait for them, one poll of the server after the other."""
        if request.group is not None:
            self._popped_for[request.subscribed_scope, request.group] = request.member
        until = time.monotonic() + request.wait
        while True:
            left = max(until - time.monotonic(), 0.0)
            pulled = await self._poll(request, min(left, _LONGEST_POLL))
            if pulled or time.monotonic() >= until:
                return pulled

    async def _poll(self, request: PopRequest, wait: float) -> list[PulledLease]:
        body: dict[str, Any] = {
            "group": request.group,
            "count": request.batch,
            "wait": wait,
            "lease": None if request.lease is None else request.lease.total_seconds(),
            "key": request.scope.key,
            "auto_ack": request.auto_ack,
        }
        if request.start is not None:
            body |= {
                "mode": request.start.mode,
                "timestamp": request.start.timestamp,
                "message_id": None if request.start.message_id is None else str(request.start.message_id),
                "look_back": request.start.look_back.total_seconds() if request.start.mode == "new" else None,
            }
        path = path_of("topics", str(request.scope), "pop")
        if request.scope.is_wide:
            path = path_of("pop")
            scope = request.scope
            body |= {"namespace": scope.namespace, "task": scope.task, "pattern": scope.pattern}
        # If the answer is lost, the messages that it took are delivered again when their lease ends.
        answer = await self._wire.ask("POST", path, body, is_repeatable=not request.auto_ack, takes=wait)
        return _leases(answer, request)


def _leases(answer: Answer, request: PopRequest) -> list[PulledLease]:
    by_token: dict[UUID | None, list[Delivered]] = {}
    for one in msgspec.json.decode(answer.body, type=_Popped).messages:
        by_token.setdefault(one.token, []).append(one)
    return [_lease(some, answer, request) for some in by_token.values()]


def _lease(some: list[Delivered], answer: Answer, request: PopRequest) -> PulledLease:
    first = some[0]
    length = request.lease
    if length is None and first.lease_ends_at is not None:
        # The length by the server's clock, which `date` has in whole seconds, up to a second late.
        now = parsedate_to_datetime(answer.date) if answer.date else datetime.now(UTC)
        length = max(first.lease_ends_at - now - timedelta(seconds=2), timedelta(seconds=1))
    messages = [one.as_message() for one in some]
    return PulledLease(first.topic, first.token, first.lease_ends_at, length, length, messages)


class HttpBackend:
    """Settles by requests to a server, which wakes the consumers that wait."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def settle(self, settlement: Settlement, lease: PoppedLease, ids: list[int], conn: Any) -> set[int]:
        messages = _as_body(lease, ids)
        if conn is not None:
            _transaction(conn).settle(settlement, messages)
            return set()
        body: dict[str, Any] = {"messages": messages}
        if settlement.kind == "retry":
            delay = None if settlement.delay is None else settlement.delay.total_seconds()
            body |= {"delay": delay, "error": settlement.error}
        elif settlement.kind == "dead_letter":
            body |= {"reason": settlement.reason, "error": settlement.error}
        return await self._settle(_PATHS[settlement.kind], body, ids)

    async def ack_leases(self, leases: Sequence[PoppedLease]) -> set[UUID]:
        ids = {lease: [one.id for one in lease.messages] for lease in leases}
        body = {"messages": [one for lease in leases for one in _as_body(lease, ids[lease])]}
        lost = await self._settle("ack", body, [one for some in ids.values() for one in some]) if leases else set()
        return {lease.token for lease, some in ids.items() if lost.issuperset(some)}

    async def extend(self, leases: Sequence[PoppedLease], length: timedelta) -> set[UUID]:
        one_of = {lease.messages[0].id: lease.token for lease in leases}
        messages = [one for lease in leases for one in _as_body(lease, [lease.messages[0].id])]
        body = {"messages": messages, "lease": length.total_seconds()}
        return {one_of[one] for one in await self._settle("extend", body, list(one_of), is_repeatable=True)}

    async def _settle(self, path: str, body: Any, ids: list[int], *, is_repeatable: bool = False) -> set[int]:
        """Settle messages. Returns those that are lost; if all of them are, the server answers with an error."""
        try:
            answer = await self._wire.ask("POST", path_of(path), body, is_repeatable=is_repeatable)
        except LeaseLost:
            return set(ids)
        return {int(one) for one in msgspec.json.decode(answer.body, type=_Settled).lost}

    def when_ended(self, conn: Any, action: Callable[[], None]) -> None:
        """Nothing to watch: `LeaseSettler.noting` sees how transactions of the bus end, and there are no others."""

    def was_settled(self, settlement: Settlement, lease: PoppedLease) -> None:
        """Nothing to do: the server wakes them."""


def _as_body(lease: PoppedLease, ids: Iterable[int]) -> list[dict[str, str]]:
    return [{"id": str(one), "token": str(lease.token)} for one in ids]


class HttpTransaction:
    """Messages to acknowledge and to publish together, sent as one request at the end of the block."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._ack: list[dict[str, str]] = []
        self._push: list[dict[str, Any]] = []
        self._has_ended = False
        self.ids: list[list[int]] = []
        """The ids of each publish call, in their order, after the commit."""

    def publish(self, topic: str, messages: Iterable[Any]) -> None:
        """Publish messages if the transaction commits. Use `bus.publish(tx, …)`."""
        self._check_open()
        given = as_outgoing(messages)
        for one in given:
            publish_one(topic, one)
        if given:
            self._push.append({"topic": topic, "messages": [as_wire(one) for one in given]})

    def settle(self, settlement: Settlement, messages: list[dict[str, str]]) -> None:
        """Acknowledge messages if the transaction commits. Use `delivery.ack(tx)`."""
        self._check_open()
        if settlement.kind != "ack":
            raise InvalidInput(
                f"a transaction over HTTP cannot {settlement.kind}", remedy="ack in it, or settle outside of it"
            )
        self._ack += messages

    async def commit(self) -> None:
        """Send the request, once."""
        self._check_open()
        self._has_ended = True
        if self._ack or self._push:
            body = {"ack": self._ack, "push": self._push}
            sending = asyncio.ensure_future(self._wire.ask("POST", path_of("transaction"), body, is_repeatable=False))
            cancelled = await hold_cancellation(sending)  # as a COMMIT does
            self.ids = [[int(one) for one in part["ids"]] for part in sending.result().as_json()["pushed"]]
            if cancelled is not None:
                raise cancelled

    def _check_open(self) -> None:
        if self._has_ended:
            raise InvalidInput("this transaction has ended", remedy="begin another one: bus.transaction()")


def _transaction(conn: Any) -> HttpTransaction:
    if not isinstance(conn, HttpTransaction):
        raise InvalidInput(f"{type(conn).__name__} is not a transaction of this bus", remedy="use: bus.transaction()")
    return conn
