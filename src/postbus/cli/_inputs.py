"""Input that people type: points in time, payloads, headers, confirmations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from postbus._content.codec import check_json
from postbus._content.content_types import BYTES, JSON, TEXT
from postbus._runtime.visible_text import visible
from postbus.cli._exits import refusal, usage_error
from postbus.cli._say import say
from postbus.errors import InvalidOption, InvalidPayload, PayloadTooDeep
from postbus.message import Outgoing
from postbus.options import as_timedelta
from postbus.start import Start


class PayloadForm(Enum):
    """How the bytes of a payload are meant."""

    DETECT = "detect"
    JSON = "json"
    TEXT = "text"
    BYTES = "bytes"


def as_payload(given: bytes, form: PayloadForm) -> Outgoing:
    """A message with the given bytes as they are, and the content type that fits them."""
    if form is PayloadForm.BYTES:
        return Outgoing(payload=given, content_type=BYTES)
    if form in (PayloadForm.DETECT, PayloadForm.JSON):
        stripped = given.strip()
        try:
            check_json(stripped)
        except PayloadTooDeep as error:
            raise PayloadTooDeep(error.message, remedy="flatten it, or publish it with --text") from error
        except InvalidPayload as error:
            if form is PayloadForm.JSON:
                raise InvalidPayload(error.message, remedy="correct it, or publish it with --text") from error
        else:
            return Outgoing(payload=stripped, content_type=JSON)
    text = given.removesuffix(b"\n").removesuffix(b"\r")
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        if form is PayloadForm.DETECT:
            return Outgoing(payload=given, content_type=BYTES)
        raise InvalidPayload(f"the payload is not UTF-8: {error}", remedy="publish it with --bytes") from error
    return Outgoing(payload=text, content_type=TEXT)


def as_headers(given: Iterable[str]) -> dict[str, str] | None:
    """name=value pairs."""
    headers = {}
    for one in given:
        name, separator, value = one.partition("=")
        if not separator or not name:
            raise InvalidOption(f"header {one!r} is not name=value", remedy="such as --header tenant=acme")
        headers[name] = value
    return headers or None


def as_moment(given: str | None, *, name: str) -> datetime | None:
    """A point in time in ISO format; without an offset it is local."""
    if given is None:
        return None
    try:
        return datetime.fromisoformat(given).astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidOption(
            f"{name} {given!r} is not a point in time",
            remedy="such as 2030-01-31T18:00 or 2030-01-31T18:00:00+00:00",
        ) from error


def as_past_moment(given: str | None, *, name: str) -> datetime | None:
    """A point in time, or how long ago: 2h."""
    if given is None:
        return None
    try:
        return datetime.now(UTC) - as_timedelta(given)
    except InvalidOption:
        return as_moment(given, name=name)
    except OverflowError as error:
        raise InvalidOption(f"{name} {given!r} is too long ago", remedy="give a shorter time, such as 30d") from error


def as_start(given: str, *, name: str) -> Start:
    """A place in a log: now, beginning, a message's id, a point in time, or how long ago: 2h."""
    if given.lower() in ("now", "beginning"):
        return Start.NOW if given.lower() == "now" else Start.BEGINNING
    if given.isascii() and given.isdigit():
        if int(given) >= 2**63:
            raise InvalidOption(f"{name} {given} is larger than any id", remedy="give the id of a message")
        return Start.from_message(int(given))
    try:
        moment = as_past_moment(given, name=name)
    except InvalidOption as error:
        raise InvalidOption(
            f"{name} {given!r} is not a place in a log",
            remedy="give now, beginning, a message's id, a time such as 2030-01-31T18:00, or how long ago: 2h",
        ) from error
    assert moment is not None
    return Start.at(moment)


def first_place(place: str | None, at: str | None) -> Start | datetime | None:
    """Where a new group starts: --from, or --at, which goes with --mode timestamp."""
    if place is not None and at is not None:
        raise InvalidOption("--from and --at are both given", remedy="give one; --at goes with --mode timestamp")
    return as_past_moment(at, name="--at") if place is None else as_start(place, name="--from")


def as_duration(given: str | None, *, name: str) -> timedelta | None:
    """How long: 30s, 5m, 24h, or seconds."""
    if given is None:
        return None
    try:
        return as_timedelta(given)
    except InvalidOption as error:
        raise InvalidOption(f"{name} {given!r} is not a duration", remedy="such as 30s, 5m or 24h") from error


def confirm(question: str) -> None:
    """Go on only if a person says yes."""
    sys.stderr.write(f"{visible(question)} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        say(to=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise refusal("not confirmed, nothing was done", remedy="answer y, or add --yes")


def only_one(**flags: Any) -> str | None:
    """The name of the flag that is set; refuses two."""
    chosen = [name for name, is_set in flags.items() if is_set]
    if len(chosen) > 1:
        listed = " and ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise usage_error(f"{listed} exclude each other", remedy="give one of them")
    return chosen[0] if chosen else None
