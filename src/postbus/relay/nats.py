"""NATS JetStream: the target is a subject, to which a stream must listen."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from postbus._runtime.log_events import event
from postbus.errors import InvalidOption, SinkUnavailable
from postbus.message import Ack, DeadLetter, Outcome, Release, Retry
from postbus.options import Duration, as_timedelta
from postbus.relay.fields import HTTP, encoded
from postbus.relay.sink import NotNow, Parcel, check_address, client

_OWN = "nats-"  # the server interprets headers with this prefix
_TOO_LARGE = 10054  # error code of JetStream: message size exceeds maximum allowed
_NOT_NOW = (10002, 10005, 10008, 10023, 10028, 10047, 10077, 10118)
"""Error codes of JetStream: no resources, no storage, no leader, the stream is full or offline."""
_PER_SUBJECT = "per subject"  # in the text of 10077 if only the message's own subject is full
_Answer = asyncio.Future[Outcome]


class NatsSink:
    """Publishes to JetStream, with the parcel's id as Nats-Msg-Id, and waits for the stream's acknowledgement.

    The stream forgets ids after its duplicate_window, 2 minutes unless it says otherwise. What is sent again after that
    it stores once more.
    """

    keeps_order = False
    kind = "nats"

    def __init__(
        self,
        url: str = "nats://127.0.0.1:4222",
        *,
        stream: str | None = None,
        credentials: str | None = None,
        timeout: Duration = 10.0,
    ) -> None:
        """`url` may be several, separated by commas. Subjects must belong to `stream`. `credentials` names a file."""
        for one in url.split(","):
            check_address(
                one if "://" in one else f"nats://{one}",
                "nats",
                "tls",
                "ws",
                "wss",
                of="NATS",
                example="nats://host:4222",
            )
        self._nats: Any = client("nats", "nats")
        if credentials is not None:
            client("nkeys", "nats")  # signs with the key in the file
            if not Path(credentials).is_file():
                raise InvalidOption(
                    f"there is no file with credentials {credentials}",
                    remedy="name the file that `nsc generate creds` has written",
                )
        self._url = url
        self._stream = stream
        self._credentials = credentials
        self._timeout = as_timedelta(timeout, name="timeout").total_seconds()
        self._client: Any = None
        self._inbox = ""
        self._numbers = itertools.count()
        self._duplicates = 0
        """The number of messages that a stream had already, until it is logged."""
        self._answers: dict[str, _Answer] = {}
        """The futures for published messages, by the subject to which the stream answers."""

    async def open(self) -> None:
        await self.close()
        options = {} if self._credentials is None else {"user_credentials": self._credentials}
        opening = self._nats.NATS()
        try:
            # No reconnecting: messages that are left in the client's buffer would overtake those that are sent again.
            await opening.connect(
                self._url.split(","),
                allow_reconnect=False,
                max_reconnect_attempts=1,  # also limits the first attempts to connect
                reconnect_time_wait=0.05,
                connect_timeout=self._timeout,
                closed_cb=self._was_closed,
                error_cb=_ignore,
                **options,
            )
            self._inbox = opening.new_inbox()
            await opening.subscribe(f"{self._inbox}.*", cb=self._was_answered)
            self._client = opening
        except (self._nats.errors.Error, OSError) as error:
            raise SinkUnavailable(f"NATS does not answer: {type(error).__name__}: {error}") from error
        except ValueError as error:
            raise InvalidOption(
                f"the address of NATS is wrong: {error}", remedy="give one such as nats://host:4222"
            ) from error
        finally:
            if self._client is None:
                await opening.close()

    async def close(self) -> None:
        client_to_close, self._client = self._client, None
        if client_to_close is not None and not client_to_close.is_closed:
            await client_to_close.close()

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        sent = [await self._publish(one) for one in parcels]
        answers = [one for one in sent if isinstance(one, asyncio.Future)]
        if answers:
            await asyncio.wait(answers, timeout=self._timeout)
        if self._duplicates:
            event(logging.INFO, "sink.duplicate", sink=self.kind, messages=self._duplicates)
            self._duplicates = 0
        return [_outcome(one) if isinstance(one, asyncio.Future) else one for one in sent]

    async def _publish(self, parcel: Parcel) -> Outcome | _Answer:
        if any(character.isspace() or character in "*>" for character in parcel.target):
            return DeadLetter(reason=f"{parcel.target!r} is not a subject: it has a space, * or >")
        try:
            headers = encoded(parcel.headers, HTTP)
        except ValueError as error:
            return DeadLetter(reason=str(error))
        headers = {name: value for name, value in headers.items() if not name.lower().startswith(_OWN)}
        headers |= {"Nats-Msg-Id": parcel.id, "Content-Type": parcel.content_type}
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        client_now = self._client
        if client_now is None:  # another call closed it meanwhile
            return Release()
        size, most = _size(headers, parcel.body), client_now.max_payload
        if size > most:  # otherwise the server would close the connection
            return DeadLetter(reason=f"{size} bytes, headers included, are more than the server's max_payload, {most}")
        subject = f"{self._inbox}.{next(self._numbers)}"
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._answers[subject] = answer
        answer.add_done_callback(lambda _: self._answers.pop(subject, None))
        errors = self._nats.errors
        try:
            await client_now.publish(parcel.target, parcel.body, reply=subject, headers=headers)
        except errors.BadSubjectError:
            _set(answer, DeadLetter(reason=f"{parcel.target!r} is not a subject"))
        except (errors.Error, OSError):
            _set(answer, Release())
        return answer

    async def _was_answered(self, answered: Any) -> None:
        answer = self._answers.get(answered.subject)
        if answer is not None:
            _set(answer, self._outcome_of(answered))

    def _outcome_of(self, answered: Any) -> Outcome:
        if answered.headers and answered.headers.get("Status") == "503":
            return Retry(error="no stream listens to the subject")
        answer = json.loads(answered.data)
        error = answer.get("error")
        if error is None:
            if answer.get("duplicate"):
                self._duplicates += 1
            return Ack()
        reason = f"JetStream refused it: {error.get('description')} ({error.get('err_code')})"
        if error.get("err_code") in _NOT_NOW and _PER_SUBJECT not in reason:
            return NotNow(reason)
        return DeadLetter(reason=reason) if error.get("err_code") == _TOO_LARGE else Retry(error=reason)

    async def _was_closed(self) -> None:
        """Release all messages without an answer, because none will come."""
        for answer in list(self._answers.values()):
            _set(answer, Release())


def _size(headers: Mapping[str, str], body: bytes) -> int:
    return len("NATS/1.0\r\n\r\n") + sum(len(f"{name}: {value}\r\n") for name, value in headers.items()) + len(body)


def _set(answer: _Answer, outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _outcome(answer: _Answer) -> Outcome:
    if answer.done():
        return answer.result()
    answer.cancel()
    return Release()


async def _ignore(error: Exception) -> None:
    """Errors of a message are in its answer, and errors of the connection close it."""
