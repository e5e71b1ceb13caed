"""Signatures of webhooks, which prove to a receiver the sender of a request, and that nobody has changed it.

Each request has two. `webhook-signature` is that of Standard Webhooks, for receivers that know it: HMAC-SHA256 over the
message's id, the time of sending and the body. `postbus-signature` also covers the headers that `postbus-signed` names.
A receiver calls `verify`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence

from postbus.errors import InvalidOption

_PREFIX = "whsec_"
_TOLERANCE = 300.0  # seconds
_ID, _TIME, _STANDARD = "webhook-id", "webhook-timestamp", "webhook-signature"
_SIGNED, _SIGNATURE = "postbus-signed", "postbus-signature"
_NEEDED = {_ID, _TIME, "content-type"}
OURS = frozenset({_ID, _TIME, _STANDARD, _SIGNED, _SIGNATURE})
"""The headers that sign a request."""


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The signature of Standard Webhooks for a message that is sent at this time, in seconds since 1970."""
    return _signature(secret, f"{message_id}.{timestamp}.".encode() + body)


def signed(
    secrets: Sequence[str], message_id: str, timestamp: int, headers: Mapping[str, str], body: bytes
) -> dict[str, str]:
    """The headers that sign a request, for each of the secrets. `headers` are all others, in lower case."""
    own = {_ID: message_id, _TIME: str(timestamp)}
    if not secrets:
        return own
    names = [_ID, _TIME, *sorted(headers)]
    covered = _covered(names, {**headers, **own}, body)
    return own | {
        _STANDARD: " ".join(sign(secret, message_id, timestamp, body) for secret in secrets),
        _SIGNED: " ".join(names),
        _SIGNATURE: " ".join(_signature(secret, covered) for secret in secrets),
    }


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, tolerance: float = _TOLERANCE, now: float | None = None
) -> bool:
    """Whether a request was signed with the secret, was sent within `tolerance` seconds from now, and is unchanged.

    This covers the body and the headers that `postbus-signed` names, which include all whose names begin with
    `postbus-`. Trust no other header.
    """
    given = {name.lower(): value for name, value in headers.items()}
    sent_at, names = given.get(_TIME, ""), given.get(_SIGNED, "").split(" ")
    if not (sent_at.isascii() and sent_at.isdigit() and len(sent_at) < 20):
        return False
    if abs((time.time() if now is None else now) - int(sent_at)) > tolerance:
        return False
    of_postbus = {name for name in given if name.startswith("postbus-")} - OURS
    if not (_NEEDED | of_postbus) <= set(names) <= given.keys() or len(set(names)) < len(names):
        return False
    wanted = _signature(secret, _covered(names, given, body)).encode()
    return any(hmac.compare_digest(wanted, one.encode()) for one in given.get(_SIGNATURE, "").split(" "))


def check_secret(secret: str) -> None:
    """Refuse a secret that is too short to protect anything."""
    if not isinstance(secret, str) or len(_key(secret)) < 16:
        raise InvalidOption("the webhook's secret is shorter than 16 bytes", remedy="make one by: openssl rand -hex 32")


def _covered(names: Sequence[str], headers: Mapping[str, str], body: bytes) -> bytes:
    """The signed text: a line for each header, an empty line, and the body."""
    return "".join(f"{name}: {headers[name]}\n" for name in names).encode() + b"\n" + body


def _signature(secret: str, covered: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(_key(secret), covered, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise InvalidOption(
            f"the webhook's secret is not base64 after {_PREFIX}: {error}",
            remedy=f"give base64 after {_PREFIX}, or a plain text of 16 bytes or more",
        ) from error
