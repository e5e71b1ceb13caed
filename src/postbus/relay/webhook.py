"""Webhooks: each message is a POST request with signatures that prove its sender: see `signatures`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

from postbus._db.addresses import public_address
from postbus._runtime.visible_text import visible
from postbus.errors import InvalidOption, SinkUnavailable
from postbus.message import Ack, DeadLetter, Outcome, Release, Retry
from postbus.options import Duration, as_timedelta, is_count
from postbus.relay.envelope import Unfit
from postbus.relay.fields import HTTP, encoded
from postbus.relay.reach import OutOfReach, Reach
from postbus.relay.signatures import OURS, check_secret, sign, signed, verify
from postbus.relay.sink import Parcel, client

__all__ = ["WebhookSink", "check_secret", "sign", "verify"]

_AT_FAULT = (400, 413, 415, 422)  # statuses that blame the message, which will not change
_READ = 4096  # bytes that are read of a response
_QUOTED = 500  # characters that errors quote of a response
_GONE = "Server disconnected"  # httpx's message for a connection that was closed while it was idle begins so
_STEERING = OURS | {
    "accept-encoding", "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie",
    "expect", "forwarded", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "via",
}  # fmt: skip
"""Headers that control the request or name its sender. Only we and the operator set them, never a message."""


class WebhookSink:
    """POSTs each message to the address that is its target.

    A status 2xx acknowledges the message. 400, 413, 415 and 422 make it a dead letter at once. After any other status
    it is tried again, after Retry-After if that is given. If nobody listens at the address, the outcome is Release, and
    the sink is away until somebody does. A few KiB of a response are read, without decompressing them.
    """

    keeps_order = False
    kind = "webhook"

    def __init__(
        self,
        url: str | None = None,
        *,
        secrets: Sequence[str] = (),
        timeout: Duration = 10.0,
        connections: int = 20,
        headers: Mapping[str, str] | None = None,
        reach: Reach | Sequence[str] | None = None,
        tells_answers: bool = True,
    ) -> None:
        """`url` is the target of messages that have no other. Each request has these `headers`.

        `secrets` sign requests; give two while you replace one by the other. With `reach`, only public addresses and
        those in the list are reached. Without it all are, and proxies of the environment are used. With
        `tells_answers`, errors quote the response.
        """
        if url is not None:
            self.check_target(url)
        if isinstance(secrets, str):
            secrets = [secrets]
        for secret in secrets:
            check_secret(secret)
        if not is_count(connections, 1000):
            raise InvalidOption(
                f"connections {connections!r} is not a number from 1 to 1000", remedy="give one such as 20"
            )
        self.target = url
        self._secrets = list(secrets)
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._reach = reach if reach is None or isinstance(reach, Reach) else Reach(reach)
        self._tells_answers = tells_answers
        self._timeout = as_timedelta(timeout, name="timeout").total_seconds()
        self._connections = connections
        self._httpx: Any = client("httpx", "webhook")
        self._client: Any = None
        self._slots: asyncio.Semaphore | None = None
        self._silent: set[tuple[str, int]] = set()
        """Hosts and ports where nobody listened."""

    @staticmethod
    def quote(text: str) -> str:
        """Escape a value that is inserted into an address, so that it cannot lead elsewhere."""
        if text.strip(".") == "":
            raise Unfit(f"{text!r} cannot be filled into an address: it would lead elsewhere")
        return quote(text, safe="")

    @staticmethod
    def check_target(target: str) -> None:
        """Refuse a target that is not an address."""
        address = public_address(target)
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
            raise InvalidOption(
                f"target {address!r} is not an address", remedy="give one such as https://example.com/hook"
            )

    async def open(self) -> None:
        if self._client is None:
            self._client = self._new_client()
            self._slots = asyncio.Semaphore(self._connections)
        for host, port in list(self._silent) if self._reach is None else ():
            await self._knock(host, port)
            self._silent.discard((host, port))

    def _new_client(self) -> Any:
        ways: dict[str, Any] = {"limits": self._httpx.Limits(max_connections=self._connections)}
        if self._reach is not None:
            from postbus.relay.guarded import GuardedTransport

            ways = {"transport": GuardedTransport(self._reach, connections=self._connections), "trust_env": False}
        return self._httpx.AsyncClient(timeout=self._timeout, follow_redirects=False, **ways)

    async def _knock(self, host: str, port: int) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                _, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            raise SinkUnavailable(f"nobody listens at {host}:{port}: {error}") from error
        writer.close()

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        return await asyncio.gather(*map(self._post, parcels))

    async def close(self) -> None:
        if self._client is not None:
            client_to_close, self._client = self._client, None
            await client_to_close.aclose()

    async def _post(self, parcel: Parcel) -> Outcome:
        assert self._slots is not None
        try:
            self.check_target(parcel.target)
            headers = self._headers_of(parcel)
        except (InvalidOption, ValueError) as error:
            return DeadLetter(reason=str(error))
        try:
            async with self._slots:
                return await self._exchange(parcel, headers)
        except Exception as error:
            return self._failed(parcel, error)

    def _failed(self, parcel: Parcel, error: Exception) -> Outcome:
        """The outcome of a message whose request had no answer."""
        httpx = self._httpx
        is_gone = isinstance(error, httpx.RemoteProtocolError) and str(error).startswith(_GONE)
        if is_gone or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            self._silent.add(_address(parcel.target))
            return Release()
        if isinstance(error, httpx.InvalidURL):
            return DeadLetter(reason=f"target {public_address(parcel.target)!r} is not an address")
        if isinstance(error, RuntimeError) and "closed" in str(error):  # another call has closed the client meanwhile
            return Release()
        if isinstance(error, TimeoutError):
            return Retry(error=f"Timeout: there was no answer within {2 * self._timeout:g} s")
        if isinstance(error, OutOfReach):
            return Retry(error=str(error))
        if isinstance(error, httpx.HTTPError | RuntimeError):  # the text may quote the response
            return Retry(
                error=type(error).__name__ + (f": {visible(str(error))[:_QUOTED]}" if self._tells_answers else "")
            )
        raise error

    async def _exchange(self, parcel: Parcel, headers: Mapping[str, str]) -> Outcome:
        """Send the request and judge the response, within a time limit for both: httpx limits only each step."""
        sending = self._client
        request = sending.build_request("POST", parcel.target, content=parcel.body, headers=headers)
        async with asyncio.timeout(2 * self._timeout):
            answer = await sending.send(request, stream=True)
            try:
                text = await self._beginning(answer)
            finally:
                await answer.aclose()  # closes the connection, unless the whole answer was read
        return _outcome(answer, self._httpx.codes.get_reason_phrase(answer.status_code), text)

    async def _beginning(self, answer: Any) -> str:
        """Read the beginning of a response's body, without decompressing it. If that fails, the status still counts."""
        taken = bytearray()
        try:
            async with asyncio.timeout(self._timeout):
                async for part in answer.aiter_raw():
                    taken += part[: _READ - len(taken)]
                    if len(taken) == _READ:
                        break
        except (self._httpx.HTTPError, TimeoutError):
            pass
        if not self._tells_answers or "content-encoding" in answer.headers:
            return ""
        return visible(taken.decode("utf-8", "replace").strip())[:_QUOTED]

    def _headers_of(self, parcel: Parcel) -> dict[str, str]:
        """The headers of a request, with signatures. Ours override the operator's, and these override the message's."""
        given = {name.replace("_", "-").lower(): value for name, value in parcel.headers.items()}  # some proxies drop _
        not_taken = _STEERING | self._headers.keys()
        given = {name: value for name, value in given.items() if name not in not_taken}
        headers = encoded(given | {"content-type": parcel.content_type}, HTTP)
        webhook_id = parcel.id.replace(".", "%2E")  # a full stop ends the id in the signed text
        # The operator's headers are not signed: they may be for a proxy, which removes them.
        signatures = signed(self._secrets, webhook_id, int(time.time()), headers, parcel.body)
        return {"accept-encoding": "identity"} | self._headers | headers | signatures


def _address(target: str) -> tuple[str, int]:
    parts = urlsplit(target)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _outcome(answer: Any, phrase: str, text: str) -> Outcome:
    if answer.is_success:
        return Ack()
    reason = f"HTTP {answer.status_code} {phrase}: {text}".rstrip(": ")
    if answer.status_code in _AT_FAULT:
        return DeadLetter(reason=reason)
    return Retry(error=reason, delay=_retry_after(answer.headers.get("retry-after")))


def _retry_after(given: str | None) -> timedelta | None:
    """Read Retry-After: seconds or a date. None if it is neither."""
    if given is None:
        return None
    try:
        if given.isascii() and given.isdigit():
            wait = timedelta(seconds=int(given))
        else:
            wait = parsedate_to_datetime(given) - datetime.now(UTC)
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(wait, timedelta(0)), timedelta(days=1))
