"""Another database with Postbus: the target is a topic there, and a batch is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from postbus._content.identity import EVENT_ID
from postbus._db.error_map import sqlstate_behind
from postbus._db.store import Store
from postbus._publish.statements import publish_many
from postbus._wakeup.waiters import topic_id
from postbus.errors import CommitUnknown, DatabaseUnavailable, InvalidInput, InvalidPayload, SinkUnavailable
from postbus.message import Ack, DeadLetter, Outcome, Outgoing, Retry
from postbus.relay.envelope import CLOUD_EVENTS_PREFIX
from postbus.relay.sink import NotNow, Parcel, one_by_one

_NOT_NOW = ("25006", "53100", "53300", "55P03")  # read-only, disk full, too many connections, locked
_NOT_NOW_CLASSES = ("40", "58")  # deadlocks and the like, trouble with files


class PostbusSink:
    """Publishes with the parcel's id as deduplication key, so exactly once within its topic's window.

    The header event-id keeps the identity of the message, however many databases it passes through.
    """

    keeps_order = True
    kind = "postbus"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._store: Store | None = None

    async def open(self) -> None:
        await self.close()
        try:
            self._store = await Store.open(self._dsn, size=4)
        except DatabaseUnavailable as error:
            raise SinkUnavailable(f"the other Postbus does not answer: {error.message}") from error

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.terminate()

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        try:
            await self._publish(parcels)
            return [Ack()] * len(parcels)
        except SinkUnavailable as error:
            if not _says_not_now(error):
                raise
            return [NotNow(error.message)] * len(parcels)
        except InvalidInput:  # a message was refused, and with it the batch: find out which
            return await one_by_one(self._send_one, parcels)

    async def _send_one(self, parcel: Parcel) -> Outcome:
        try:
            await self._publish([parcel])
            return Ack()
        except InvalidPayload as error:
            return DeadLetter(reason=str(error))
        except InvalidInput as error:
            return Retry(error=str(error))

    async def _publish(self, parcels: Sequence[Parcel]) -> None:
        store = self._store
        if store is None:
            raise SinkUnavailable("another call closed the connection to the other Postbus")
        batches = [
            publish_many(topic, [_outgoing(one) for one in some])
            for topic, some in groupby(parcels, key=lambda one: one.target)
        ]
        try:
            answers = await store.publish_batches(batches)
            if not all(answer.commit_notifies for answer in answers):
                await store.notify(sorted({topic_id(one.target) for one in parcels}))
        except (DatabaseUnavailable, CommitUnknown) as error:
            raise SinkUnavailable(f"the other Postbus is away: {error.message}") from error


def _says_not_now(error: SinkUnavailable) -> bool:
    """Whether the other database said that it cannot write at the moment, whatever the message."""
    sqlstate = sqlstate_behind(error.__cause__)
    return sqlstate in _NOT_NOW or sqlstate[:2] in _NOT_NOW_CLASSES


def _outgoing(parcel: Parcel) -> Outgoing:
    of_cloud_events = {name: value for name, value in parcel.headers.items() if name.startswith(CLOUD_EVENTS_PREFIX)}
    return Outgoing(
        payload=parcel.body,
        content_type=parcel.content_type,
        key=parcel.key,
        headers={**parcel.message.headers, **of_cloud_events, EVENT_ID: parcel.event_id},
        correlation_id=parcel.message.correlation_id,
        dedup_key=parcel.id,
    )
