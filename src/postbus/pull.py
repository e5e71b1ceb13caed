"""Pulling: messages are taken when the caller asks for them, and settled one by one or together."""

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
from postbus._pull.lease import PoppedLease, as_held, lease_lost
from postbus._pull.pull_client import PullClient
from postbus._pull.request import PopRequest
from postbus._pull.settlements import ACK, RELEASE, How
from postbus._runtime.log_events import event
from postbus.errors import InvalidInput, InvalidOption, LeaseLost, PostbusError
from postbus.message import Message
from postbus.options import Duration, as_timedelta
from postbus.scope import Scope
from postbus.start import Default, Start
from postbus.subscription import is_count

T = TypeVar("T")
_decode = decoder_for(Any)
_MOST = 10_000


class Delivery:
    """One message that was popped. It is held for its lease, and settled once."""

    __slots__ = ("_holder", "_lease", "message")

    def __init__(self, message: Message, lease: PoppedLease | None, holder: PullClient) -> None:
        self.message = message
        self._lease = lease
        self._holder = holder

    def __repr__(self) -> str:
        state = "auto-acked" if self._lease is None else "open" if self.is_open else "settled"
        return f"<Delivery of {self.message.topic} {self.message.id}, attempt {self.message.attempt}, {state}>"

    @property
    def payload(self) -> Any:
        """The payload as its content type says: JSON decoded, text as str, anything else as bytes."""
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
        """Names the lease, for whoever settles the message elsewhere; None with auto_ack."""
        return None if self._lease is None else self._lease.token

    @property
    def ends_at(self) -> datetime | None:
        """When the lease ends that the pop brought, by the clock of the database; None with auto_ack."""
        return None if self._lease is None else self._lease.ends_at

    @property
    def remaining(self) -> timedelta:
        """How long the message is still held, as far as this process knows."""
        return timedelta(0) if self._lease is None else self._lease.remaining

    @property
    def is_open(self) -> bool:
        """Whether the message is still to be settled.

        In a group it is not if one before it, of the same key, was given back: then this one comes again after that.
        """
        return self._lease is not None and self._lease.is_open(self.message.id)

    async def ack(self, conn: Any = None) -> None:
        """The message is done: in the transaction of `conn`, or, without one, now.

        This and all settlements raise LeaseLost, and change nothing, if somebody else has the message by now.
        """
        await self._settle(ACK, conn)

    async def retry(
        self, conn: Any = None, *, delay: timedelta | float | None = None, error: str | None = None
    ) -> None:
        """Try the message again after `delay`, or as the topic says. After its last attempt it is a dead letter."""
        await self._settle(How("retry", delay=as_delay(delay), error=error), conn)

    async def dead_letter(self, reason: str, conn: Any = None, *, error: str | None = None) -> None:
        """Give the message up."""
        await self._settle(How("dead_letter", reason=reason, error=error), conn)

    async def release(self, conn: Any = None) -> None:
        """Give the message back as if it had not been popped: the attempt does not count."""
        await self._settle(RELEASE, conn)

    async def extend(self, lease: Duration | None = None) -> None:
        """Hold the message for this long from now, or for its lease once more; and with it all of the same lease."""
        await extend(self._holder, [self._held_for_sure()], lease)

    async def _settle(self, how: How, conn: Any) -> None:
        lease = self._held_for_sure()
        await self._holder.settlements.settle(how, {lease: [self.message.id]}, conn)

    def _held_for_sure(self) -> PoppedLease:
        if self._lease is None:
            raise _auto_acked(f"message {self.message.id} was")
        self._lease.check_open(self.message.id)
        return self._lease


class Popped(Sequence[Delivery]):
    """What a pop brought: nothing, or up to `batch` deliveries. Its methods settle all that is open in it."""

    def __init__(self, deliveries: Sequence[Delivery], holder: PullClient) -> None:
        self._deliveries = deliveries
        self._holder = holder
        self._leases = list(dict.fromkeys(one._lease for one in deliveries if one._lease is not None))

    def __repr__(self) -> str:
        return f"<Popped {list(self._deliveries)!r}>"

    def __len__(self) -> int:
        """How many messages there are."""
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery]: ...

    def __getitem__(self, index: int | slice) -> Delivery | Sequence[Delivery]:
        """One of the deliveries, or some of them."""
        return self._deliveries[index]

    @property
    def payloads(self) -> list[Any]:
        """The payloads of all deliveries."""
        return [one.payload for one in self._deliveries]

    async def ack(self, conn: Any = None) -> None:
        """All that is open is done: in the transaction of `conn`, or, without one, now."""
        self._refuse_auto_acked()
        # A lease of a queue is lost as a whole; of a group somebody else may have some of the messages by now.
        if conn is None and all(
            len(lease.in_hand) == len(lease.messages) and not lease.is_of_group for lease in self._leases
        ):
            await self._holder.settlements.ack_whole(self._leases)
        else:
            await self._settle(ACK, conn)

    async def retry(
        self, conn: Any = None, *, delay: timedelta | float | None = None, error: str | None = None
    ) -> None:
        """Try all that is open again after `delay`, or as the topic says."""
        await self._settle(How("retry", delay=as_delay(delay), error=error), conn)

    async def dead_letter(self, reason: str, conn: Any = None, *, error: str | None = None) -> None:
        """Give all up that is open."""
        await self._settle(How("dead_letter", reason=reason, error=error), conn)

    async def release(self, conn: Any = None) -> None:
        """Give all back that is open, as if it had not been popped."""
        await self._settle(RELEASE, conn)

    async def extend(self, lease: Duration | None = None) -> None:
        """Hold all that is open for this long from now, or for its lease once more."""
        self._refuse_auto_acked()
        await extend(self._holder, self._open_ids(), lease)

    @asynccontextmanager
    async def keep(self) -> AsyncIterator[Self]:
        """Prolong the leases in the background for as long as the block runs, until all is settled."""
        with self._holder.kept(self._leases):
            yield self

    async def _settle(self, how: How, conn: Any) -> None:
        self._refuse_auto_acked()
        await self._holder.settlements.settle(how, self._open_ids(), conn)

    def _open_ids(self) -> dict[PoppedLease, list[int]]:
        return {lease: ids for lease in self._leases if (ids := lease.open_ids)}

    def _refuse_auto_acked(self) -> None:
        if self._deliveries and not self._leases:
            raise _auto_acked("these messages were")

    async def finish(self, error: BaseException | None) -> None:
        """Ack what is open, or after an error give it back. Used at the end of `async with`."""
        if error is None:
            undone = {lease: list(ids) for lease, given in self._open_ids().items() if (ids := lease.undone_of(given))}
            # Their transaction did not commit, as far as we know: so they are not done.
            await self._give_back(How("retry", error="the transaction that settled it did not commit"), undone)
            if self._leases:
                await self.ack()
        else:
            why = "".join(traceback.format_exception(error))[-4000:]
            if lost := await self._give_back(How("retry", error=why), self._open_ids()):
                event(logging.WARNING, "lease.lost", messages=list(lost))
        await self._give_back(RELEASE, {lease: sorted(lease.doubtful) for lease in self._leases if lease.doubtful})

    async def _give_back(self, how: How, ids_of: dict[PoppedLease, list[int]]) -> Sequence[int]:
        """Returns the ids of messages that are lost."""
        try:
            await self._holder.settlements.settle(how, ids_of)
        except LeaseLost as lost:
            return lost.ids
        return ()


def _auto_acked(what: str) -> InvalidInput:
    return InvalidInput(
        f"{what} popped with auto_ack: that settles them at once", remedy="leave this out, or pop without auto_ack"
    )


async def extend(holder: PullClient, leases: Iterable[PoppedLease], length: Duration | None) -> None:
    """Prolong leases; each by its own length, if none is given."""
    wanted = None if length is None else check_lease(length)
    by_length: dict[timedelta, list[PoppedLease]] = {}
    for lease in leases:
        by_length.setdefault(wanted or lease.length, []).append(lease)
    lost: list[int] = []
    for one, some in by_length.items():
        lost += await holder.extend(some, one)
    if lost:
        raise lease_lost(lost)


class Pop:
    """A pop that is asked for by awaiting it, or by `async with`.

    Awaited, it gives what there is, to be settled by the caller. At the end of `async with` what is not settled yet is
    acked; if it ends by an error, it is given back, to be tried again.
    """

    def __init__(self, connect: Callable[[], Awaitable[PullClient]], wish: PopRequest, *, keep: bool) -> None:
        self._connect = connect
        self._wish = wish
        self._keep = keep
        self._stack = ExitStack()
        self._popped: Popped | None = None

    def for_others(self) -> Self:
        """The same for a consumer elsewhere: what becomes of its group is not up to this process."""
        self._wish = msgspec.structs.replace(self._wish, for_others=True)
        return self

    def __await__(self) -> Generator[Any, None, Popped]:
        if self._keep:
            raise InvalidOption(
                "keep is for async with", remedy="use: async with bus.pop(…, keep=True), or popped.keep()"
            )
        return self._pop().__await__()

    async def _pop(self) -> Popped:
        holder = await self._connect()
        pulled = await holder.pop(self._wish)
        return Popped(
            [
                Delivery(message, lease, holder)
                for message, lease in as_held(pulled, is_of_group=self._wish.group is not None)
            ],
            holder,
        )

    async def __aenter__(self) -> Popped:
        if self._popped is not None:
            raise InvalidInput("this pop is in use already", remedy="call bus.pop() for each block")
        self._popped = await self._pop()
        if self._keep:
            self._stack.enter_context(self._popped._holder.kept(self._popped._leases))
        return self._popped

    async def __aexit__(self, kind: object, error: BaseException | None, where: object) -> None:
        popped = self._popped
        assert popped is not None
        try:
            await popped._holder.finish(popped.finish(error))
        except PostbusError as problem:
            if error is None:
                raise
            # What the block raised is what counts; the messages come back when their lease ends.
            event(logging.WARNING, "give_back.failed", topic=str(self._wish.scope), error=problem.message)
        finally:
            self._stack.close()
            self._popped = None


def check_lease(lease: Duration) -> timedelta:
    """A lease that can be prolonged in time."""
    length = as_timedelta(lease, name="lease")
    if length < timedelta(seconds=1):
        raise InvalidOption(f"lease {length} is too short", remedy="a lease is 1 second or more")
    return length


class PopOptions(TypedDict, total=False):
    """What a pop asks for, beside the topic. What is left out has the default named here."""

    group: str | None
    """Whose messages, of a PUB_SUB topic (None: those of a QUEUE)."""
    batch: int
    """At most this many (1)."""
    wait: Duration
    """With nothing there, wait so long for messages (0)."""
    lease: Duration | None
    """How long they are held (None: as the topic says)."""
    key: str | None
    """Only messages of this key; for groups (None: all)."""
    namespace: str | None
    """All topics of this namespace, instead of a topic; for groups."""
    task: str | None
    """All topics of this task, instead of a topic; for groups."""
    start: Start | str | datetime | int | None
    """Where a group begins that has never asked for these messages before (None: by the server's default, or all)."""
    mode: str | None
    """The same by name: new, all or timestamp, which then is `start` (None: see `start`)."""
    look_back: Duration | None
    """How far before now mode new begins (4 seconds)."""
    member: str | None
    """Who has them, for people who look (None: this process)."""
    auto_ack: bool
    """Settle them as they are taken: each comes at most once (False)."""
    keep: bool
    """Prolong the lease while `async with` runs (False)."""


def pop(
    connect: Callable[[], Awaitable[PullClient]], topic: str | None, options: PopOptions, default: Default | None = None
) -> Pop:
    """A pop, if its options make sense."""
    if unknown := options.keys() - PopOptions.__annotations__.keys():
        raise InvalidOption(
            f"a pop has no option {min(unknown)!r}", remedy=f"it has {', '.join(PopOptions.__annotations__)}"
        )
    group, key, member = options.get("group"), options.get("key"), options.get("member")
    batch, lease = options.get("batch", 1), options.get("lease")
    auto_ack, keep = options.get("auto_ack", False), options.get("keep", False)
    wait = as_timedelta(options.get("wait", 0.0), name="wait").total_seconds()
    for is_wrong, problem, remedy in (
        (not is_count(batch, _MOST), f"batch {batch!r} is out of range", f"batch goes from 1 to {_MOST}"),
        (wait < 0, f"wait {wait} is negative", "give the seconds to wait, or 0 to look only"),
        (group is not None and not is_name(group), f"bad group name {group!r}", NAME_RULE),
        (not _is_text(key), f"key {key!r} is not a text", "give the key of messages as a str"),
        (not _is_text(member), f"member {member!r} is not a text", "give a name as a str"),
        (auto_ack and lease is not None, "with auto_ack there is no lease", "leave one of them out"),
        (auto_ack and keep, "with auto_ack there is nothing to keep", "leave one of them out"),
    ):
        if is_wrong:
            raise InvalidOption(problem, remedy=remedy)
    length = None if lease is None else check_lease(lease)
    scope, start = _place(topic, options, default)
    return Pop(connect, PopRequest(scope, group, start, batch, wait, length, member, auto_ack), keep=keep)


def _place(topic: str | None, options: PopOptions, default: Default | None) -> tuple[Scope, Start | None]:
    """What is popped from, and where a group begins that is new to it."""
    scope = Scope.of(topic, key=options.get("key"), namespace=options.get("namespace"), task=options.get("task"))
    start, mode, look_back = options.get("start"), options.get("mode"), options.get("look_back")
    if options.get("group") is not None:
        if (
            default is None and start is None and mode is None and look_back is None
        ):  # that of a server, which knows its own
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
