"""Webhooks: each message is a POST, signed so that whoever gets it knows where it comes from.

Signatures are those of Standard Webhooks: HMAC-SHA256 over the message's id, the time of sending and the body, in the
headers webhook-id, webhook-timestamp and webhook-signature. `verify` is what a receiver calls.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

from postbus.errors import InvalidOption, SinkUnavailable
from postbus.message import Ack, DeadLetter, Outcome, Release, Retry
from postbus.options import Duration, as_timedelta
from postbus.relay.fields import HTTP, encoded
from postbus.relay.sink import Parcel, client

_PREFIX = "whsec_"
_AT_FAULT = (400, 413, 415, 422)  # answers that blame the message, which does not change
_TOLERANCE = 300.0  # seconds
_KEPT = 500  # characters of an answer


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The signature of a message that is sent at this time, in seconds since 1970."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, tolerance: float = _TOLERANCE, now: float | None = None
) -> bool:
    """Whether a request comes from who knows the secret, and was sent within `tolerance` seconds from now."""
    given = {name.lower(): value for name, value in headers.items()}
    message_id, sent_at = given.get("webhook-id"), given.get("webhook-timestamp", "")
    if message_id is None or not (sent_at.isascii() and sent_at.isdigit() and len(sent_at) < 20):
        return False
    if abs((time.time() if now is None else now) - int(sent_at)) > tolerance:
        return False
    wanted = sign(secret, message_id, int(sent_at), body)
    signatures = given.get("webhook-signature", "").split()
    return any(hmac.compare_digest(wanted.encode(), one.encode()) for one in signatures)


def check_secret(secret: str) -> None:
    """Refuse a secret that signs nothing."""
    if not isinstance(secret, str) or len(_key(secret)) < 16:
        raise InvalidOption("the webhook's secret is shorter than 16 bytes", remedy="such as: openssl rand -hex 32")


def _key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise InvalidOption(f"the webhook's secret is not base64 after {_PREFIX}: {error}") from error


class WebhookSink:
    """POSTs messages to the address that is their target.

    2xx is an acknowledgement. 400, 413, 415 and 422 make a dead letter at once; other answers are tried again, after
    Retry-After if they have one. Where nobody listens the outcome is Release, and the sink is away until somebody does.
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
    ) -> None:
        """`url` is the target of messages that have no other. `headers` go with each request.

        `secrets` sign: two of them while one takes the place of the other.
        """
        if url is not None:
            self.check_target(url)
        if isinstance(secrets, str):
            secrets = [secrets]
        for secret in secrets:
            check_secret(secret)
        if not isinstance(connections, int) or not 1 <= connections <= 1000:
            raise InvalidOption(f"connections {connections!r} is not between 1 and 1000", remedy="such as 20")
        self.target = url
        self._secrets = list(secrets)
        self._headers = dict(headers or {})
        self._timeout = as_timedelta(timeout, name="timeout").total_seconds()
        self._connections = connections
        self._httpx: Any = client("httpx", "webhook")
        self._client: Any = None
        self._slots: asyncio.Semaphore | None = None
        self._silent: set[tuple[str, int]] = set()
        """Hosts and ports where nobody listened."""

    @staticmethod
    def quote(text: str) -> str:
        """What is filled into an address: it cannot lead elsewhere."""
        return quote(text, safe="")

    @staticmethod
    def check_target(target: str) -> None:
        """Refuse what is no address."""
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidOption(f"target {target!r} is not an address", remedy="such as https://example.com/hook")

    async def open(self) -> None:
        limits = self._httpx.Limits(max_connections=self._connections)
        if self._client is None:
            self._client = self._httpx.AsyncClient(timeout=self._timeout, limits=limits, follow_redirects=False)
            self._slots = asyncio.Semaphore(self._connections)
        for host, port in list(self._silent):
            await self._knock(host, port)
            self._silent.discard((host, port))

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
            told = {name.replace("_", "-"): value for name, value in parcel.headers.items()}  # some proxies drop _
            headers = self._headers | encoded(told, HTTP) | self._signed(parcel)
        except (InvalidOption, ValueError) as error:
            return DeadLetter(reason=str(error))
        headers["content-type"] = parcel.content_type
        sending = self._client
        try:
            async with self._slots:
                answer = await sending.post(parcel.target, content=parcel.body, headers=headers)
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout, self._httpx.RemoteProtocolError):
            self._silent.add(_address(parcel.target))
            return Release()
        except RuntimeError:  # closed meanwhile, for another call
            return Release()
        except self._httpx.HTTPError as error:
            return Retry(error=f"{type(error).__name__}: {error}")
        except self._httpx.InvalidURL as error:
            return DeadLetter(reason=f"target {parcel.target!r} is not an address: {error}")
        return _outcome(answer)

    def _signed(self, parcel: Parcel) -> dict[str, str]:
        now = int(time.time())
        webhook_id = parcel.id.replace(".", "%2E")  # a full stop is what ends it in that which is signed
        headers = {"webhook-id": webhook_id, "webhook-timestamp": str(now)}
        if self._secrets:
            signatures = (sign(secret, webhook_id, now, parcel.body) for secret in self._secrets)
            headers["webhook-signature"] = " ".join(signatures)
        return headers


def _address(target: str) -> tuple[str, int]:
    parts = urlsplit(target)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _outcome(answer: Any) -> Outcome:
    if answer.is_success:
        return Ack()
    told = f"HTTP {answer.status_code} {answer.reason_phrase}: {answer.text[:_KEPT]}".rstrip(": ")
    if answer.status_code in _AT_FAULT:
        return DeadLetter(reason=told)
    return Retry(error=told, delay=_retry_after(answer.headers.get("retry-after")))


def _retry_after(given: str | None) -> timedelta | None:
    """Seconds, or a date. None if it says neither."""
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
