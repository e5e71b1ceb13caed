"""Popping messages on request, and settling them one by one or together."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Self, TypedDict, TypeVar, overload
from uuid import UUID

import msgspec

from postbus._content.codec import decoder_for, is_storable
from postbus._content.names import NAME_RULE, check_topic_name, is_name
from postbus._handling.handling import as_delay
from postbus._pull.lease import MessageState, PoppedLease, lease_lost, with_leases
from postbus._pull.pull_client import PullClient
from postbus._pull.request import PopRequest
from postbus._pull.settlements import ACK, RELEASE, Settlement
from postbus._runtime.log_events import event
from postbus.errors import InvalidInput, InvalidOption, LeaseLost, PostbusError
from postbus.message import Message
from postbus.options import Duration, as_timedelta, is_count
from postbus.scope import Scope
from postbus.start import Default, Mode, Start

T = TypeVar("T")
_decode = decoder_for(Any)
_MAX_BATCH = 10_000


class Delivery:
    """One popped message. Its lease holds it until it is settled, once."""

    __slots__ = ("_client", "_lease", "message")

    def __init__(self, message: Message, lease: PoppedLease | None, client: PullClient) -> None:
        self.message = message
        self._lease = lease
        self._client = client

    def __repr__(self) -> str:
        state = "auto-acked" if self._lease is None else "open" if self.is_open else "settled"
        return f"<Delivery of {self.message.topic} {self.message.id}, attempt {self.message.attempt}, {state}>"

    @property
    def payload(self) -> Any:
        """The payload by its content type: JSON decoded, text as str, anything else as bytes."""
        return _decode(self.message.payload, self.message.content_type)

    def decode(self, wanted: type[T]) -> T:
        """The payload as this type, such as a dataclass. Raises PayloadNotDecodable if it does not fit."""
        try:
            decoder = decoder_for(wanted)
        except TypeError as error:
            raise InvalidOption(
                f"a payload cannot be decoded to {wanted!r}: {error}",
                remedy="give a dataclass, a msgspec struct, a pydantic model, dict, list, str, bytes",
            ) from error
        decoded: T = decoder(self.message.payload, self.message.content_type)
        return decoded

    @property
    def token(self) -> UUID | None:
        """The token of the lease, for settling the message elsewhere; None with auto_ack."""
        return None if self._lease is None else self._lease.token

    @property
    def ends_at(self) -> datetime | None:
        """The end of the lease that the pop returned, by the clock of the database; None with auto_ack."""
        return None if self._lease is None else self._lease.ends_at

    @property
    def remaining(self) -> timedelta:
        """The time left until the lease ends, as far as this process knows."""
        return timedelta(0) if self._lease is None else self._lease.remaining

    @property
    def is_open(self) -> bool:
        """Whether the message is still to be settled.

        In a group, a message is not open any more when one before it of the same key was given back: it is delivered
        again after that one.
        """
        return self._lease is not None and self._lease.is_open(self.message.id)

    async def ack(self, conn: Any = None) -> None:
        """Acknowledge the message, in the transaction of `conn` or, without one, now.

        Like all settlements, this raises LeaseLost and changes nothing if another consumer has the message by now.
        """
        await self._settle(ACK, conn)

    async def retry(
        self, conn: Any = None, *, delay: timedelta | float | None = None, error: str | None = None
    ) -> None:
        """Try the message again after `delay`, or as the topic says. After the last attempt it is a dead letter."""
        await self._settle(Settlement("retry", delay=as_delay(delay), error=error), conn)

    async def dead_letter(self, reason: str, conn: Any = None, *, error: str | None = None) -> None:
        """Give the message up: it becomes a dead letter."""
        await self._settle(Settlement("dead_letter", reason=reason, error=error), conn)

    async def release(self, conn: Any = None) -> None:
        """Give the message back as if it had never been popped: the attempt does not count."""
        await self._settle(RELEASE, conn)

    async def extend(self, lease: Duration | None = None) -> None:
        """Let the lease end this long from now, by default after its length; for all messages of the same lease."""
        await extend(self._client, [self._checked_lease()], lease)

    async def _settle(self, settlement: Settlement, conn: Any) -> None:
        lease = self._checked_lease()
        await self._client.settler.settle(settlement, {lease: [self.message.id]}, conn)

    def _checked_lease(self) -> PoppedLease:
        if self._lease is None:
            raise _auto_acked(f"message {self.message.id} was")
        self._lease.check_open(self.message.id)
        return self._lease


class Popped(Sequence[Delivery]):
    """The result of a pop: up to `batch` deliveries. Its methods settle all that are still open."""

    def __init__(self, deliveries: Sequence[Delivery], client: PullClient) -> None:
        self._deliveries = deliveries
        self._client = client
        self._leases = list(dict.fromkeys(one._lease for one in deliveries if one._lease is not None))

    def __repr__(self) -> str:
        return f"<Popped {list(self._deliveries)!r}>"

    def __len__(self) -> int:
        """The number of messages."""
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery]: ...

    def __getitem__(self, index: int | slice) -> Delivery | Sequence[Delivery]:
        """One delivery, or a slice of them."""
        return self._deliveries[index]

    @property
    def payloads(self) -> list[Any]:
        """The payloads of all deliveries."""
        return [one.payload for one in self._deliveries]

    async def ack(self, conn: Any = None) -> None:
        """Acknowledge all open messages, in the transaction of `conn` or, without one, now."""
        self._refuse_auto_acked()
        # A lease of a queue is lost as a whole. Of a group, another consumer may have some of the messages by now.
        if conn is None and all(lease.is_untouched and not lease.is_of_group for lease in self._leases):
            await self._client.settler.ack_whole(self._leases)
        else:
            await self._settle(ACK, conn)

    async def retry(
        self, conn: Any = None, *, delay: timedelta | float | None = None, error: str | None = None
    ) -> None:
        """Try all open messages again after `delay`, or as the topic says."""
        await self._settle(Settlement("retry", delay=as_delay(delay), error=error), conn)

    async def dead_letter(self, reason: str, conn: Any = None, *, error: str | None = None) -> None:
        """Give all open messages up: they become dead letters."""
        await self._settle(Settlement("dead_letter", reason=reason, error=error), conn)

    async def release(self, conn: Any = None) -> None:
        """Give all open messages back as if they had never been popped."""
        await self._settle(RELEASE, conn)

    async def extend(self, lease: Duration | None = None) -> None:
        """Let the leases of all open messages end this long from now, by default each after its length."""
        self._refuse_auto_acked()
        await extend(self._client, self._open_ids(), lease)

    @asynccontextmanager
    async def keep(self) -> AsyncIterator[Self]:
        """Prolong the leases in the background while the block runs, until all messages are settled."""
        with self._client.kept(self._leases):
            yield self

    async def _settle(self, settlement: Settlement, conn: Any) -> None:
        self._refuse_auto_acked()
        await self._client.settler.settle(settlement, self._open_ids(), conn)

    def _open_ids(self) -> dict[PoppedLease, list[int]]:
        return {lease: ids for lease in self._leases if (ids := lease.open_ids)}

    def _refuse_auto_acked(self) -> None:
        if self._deliveries and not self._leases:
            raise _auto_acked("these messages were")

    async def finish(self, error: BaseException | None) -> None:
        """Acknowledge the open messages or, after an error, give them back. Used at the end of `async with`."""
        if error is None:
            undone = {lease: undone for lease, ids in self._open_ids().items() if (undone := lease.undone_of(ids))}
            # As far as this process knows, the transaction that settled these did not commit.
            await self._give_back(Settlement("retry", error="the transaction that settled it did not commit"), undone)
            if self._leases:
                await self.ack()
        else:
            why = "".join(traceback.format_exception(error))[-4000:]
            if lost := await self._give_back(Settlement("retry", error=why), self._open_ids()):
                event(logging.WARNING, "lease.lost", messages=list(lost))
        doubtful = {lease: lease.ids_in(MessageState.DOUBTFUL) for lease in self._leases}
        await self._give_back(RELEASE, {lease: sorted(ids) for lease, ids in doubtful.items() if ids})

    async def _give_back(self, settlement: Settlement, ids_of: dict[PoppedLease, list[int]]) -> Sequence[int]:
        """Settle messages. Returns the ids of those that are lost."""
        try:
            await self._client.settler.settle(settlement, ids_of)
        except LeaseLost as lost:
            return lost.ids
        return ()


def _auto_acked(what: str) -> InvalidInput:
    return InvalidInput(
        f"{what} popped with auto_ack: that settles them at once", remedy="omit this call, or pop without auto_ack"
    )


async def extend(client: PullClient, leases: Iterable[PoppedLease], length: Duration | None) -> None:
    """Extend leases, from now on; each by its own length if none is given."""
    wanted = None if length is None else check_lease(length)
    by_length: dict[timedelta, list[PoppedLease]] = {}
    for lease in leases:
        by_length.setdefault(wanted or lease.length, []).append(lease)
    lost: list[int] = []
    for one, some in by_length.items():
        lost += await client.extend(some, one)
    if lost:
        raise lease_lost(lost)


class Pop:
    """A pop that runs when it is awaited, or entered by `async with`.

    If it is awaited, the caller settles the messages. The end of `async with` acknowledges all that are still open; if
    the block raises, they are given back and tried again.
    """

    def __init__(self, connect: Callable[[], Awaitable[PullClient]], request: PopRequest, *, keep: bool) -> None:
        self._connect = connect
        self._request = request
        self._keep = keep
        self._stack = ExitStack()
        self._popped: Popped | None = None

    def for_others(self) -> Self:
        """The same on behalf of a consumer elsewhere: when this process ends, that consumer's group has not stopped."""
        self._request = msgspec.structs.replace(self._request, for_others=True)
        return self

    def __await__(self) -> Generator[Any, None, Popped]:
        if self._keep:
            raise InvalidOption(
                "keep is for async with", remedy="use: async with bus.pop(…, keep=True), or popped.keep()"
            )
        return self._pop().__await__()

    async def _pop(self) -> Popped:
        client = await self._connect()
        pulled = await client.pop(self._request)
        return Popped(
            [
                Delivery(message, lease, client)
                for message, lease in with_leases(pulled, is_of_group=self._request.group is not None)
            ],
            client,
        )

    async def __aenter__(self) -> Popped:
        if self._popped is not None:
            raise InvalidInput("this pop is in use already", remedy="call bus.pop() for each block")
        self._popped = await self._pop()
        if self._keep:
            self._stack.enter_context(self._popped._client.kept(self._popped._leases))
        return self._popped

    async def __aexit__(self, kind: object, error: BaseException | None, where: object) -> None:
        popped = self._popped
        assert popped is not None
        try:
            await popped._client.finish(popped.finish(error))
        except PostbusError as problem:
            if error is None:
                raise
            # The caller needs the error of the block. The messages come back when their lease ends.
            event(logging.WARNING, "give_back.failed", topic=str(self._request.scope), error=problem.message)
        finally:
            self._stack.close()
            self._popped = None


def check_lease(lease: Duration) -> timedelta:
    """The length of a lease. Refuses one that is too short to be prolonged in time."""
    length = as_timedelta(lease, name="lease")
    if length < timedelta(seconds=1):
        raise InvalidOption(f"lease {length} is too short", remedy="a lease is 1 second or more")
    return length


class PopOptions(TypedDict, total=False):
    """Options of a pop beside the topic. The default of each is in brackets."""

    group: str | None
    """The group that consumes a PUB_SUB topic (None: the topic is a QUEUE)."""
    batch: int
    """The number of messages, at most (1)."""
    wait: Duration
    """The time to wait for messages if there are none (0)."""
    lease: Duration | None
    """The length of the lease (None: as the topic says)."""
    key: str | None
    """Only messages of this key; for groups (None: all)."""
    namespace: str | None
    """All topics of this namespace, instead of a topic; for groups."""
    task: str | None
    """All topics of this task, instead of a topic; for groups."""
    start: Start | str | datetime | int | None
    """The position at which a new group begins (None: by the server's default, or all)."""
    mode: Mode | None
    """The same by name: new, all, or timestamp with a time as `start` (None: see `start`)."""
    look_back: Duration | None
    """The time before now at which mode new begins (4 seconds)."""
    member: str | None
    """The consumer's name, as operators see it (None: that of this process)."""
    auto_ack: bool
    """Acknowledge messages as they are taken: each is delivered at most once (False)."""
    keep: bool
    """Prolong the lease while the block of `async with` runs (False)."""


def pop(
    connect: Callable[[], Awaitable[PullClient]], topic: str | None, options: PopOptions, default: Default | None = None
) -> Pop:
    """A pop with these options. Refuses options that make no sense."""
    if unknown := options.keys() - PopOptions.__annotations__.keys():
        raise InvalidOption(
            f"a pop has no option {min(unknown)!r}", remedy=f"it has {', '.join(PopOptions.__annotations__)}"
        )
    group, key, member = options.get("group"), options.get("key"), options.get("member")
    batch, lease = options.get("batch", 1), options.get("lease")
    auto_ack, keep = options.get("auto_ack", False), options.get("keep", False)
    wait = as_timedelta(options.get("wait", 0.0), name="wait").total_seconds()
    for is_wrong, problem, remedy in (
        (not is_count(batch, _MAX_BATCH), f"batch {batch!r} is out of range", f"batch goes from 1 to {_MAX_BATCH}"),
        (wait < 0, f"wait {wait} is negative", "give the seconds to wait, or 0 to poll once"),
        (group is not None and not is_name(group), f"bad group name {group!r}", NAME_RULE),
        (not _is_text(key), f"key {key!r} is not a text", "give the key of messages as a str"),
        (not _is_text(member), f"member {member!r} is not a text", "give a name as a str"),
        (auto_ack and lease is not None, "with auto_ack there is no lease", "omit one of them"),
        (auto_ack and keep, "with auto_ack there is nothing to keep", "omit one of them"),
    ):
        if is_wrong:
            raise InvalidOption(problem, remedy=remedy)
    length = None if lease is None else check_lease(lease)
    scope, start = _scope_and_start(topic, options, default)
    return Pop(connect, PopRequest(scope, group, start, batch, wait, length, member, auto_ack), keep=keep)


def _scope_and_start(topic: str | None, options: PopOptions, default: Default | None) -> tuple[Scope, Start | None]:
    """The scope to pop from, and the position at which a new group begins; None to leave that to the server."""
    scope = Scope.of(topic, key=options.get("key"), namespace=options.get("namespace"), task=options.get("task"))
    start, mode, look_back = options.get("start"), options.get("mode"), options.get("look_back")
    if options.get("group") is not None:
        if default is None and start is None and mode is None and look_back is None:
            return scope, None
        return scope, (default or Default(None)).start_of(
            start, mode, look_back, is_recorded=True, is_wide=scope.is_wide
        )
    check_topic_name(topic or "")
    if any(one is not None for one in (scope.key, start, mode, look_back)):
        raise InvalidOption("key, start, mode and look_back are for groups", remedy="give group=…")
    return scope, None


def _is_text(value: object) -> bool:
    return value is None or (isinstance(value, str) and is_storable(value))
