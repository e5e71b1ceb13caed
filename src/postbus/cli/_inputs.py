"""Input that people type: times, durations, payloads, headers, confirmations."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
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
    """The kinds of payload that people can ask for."""

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
    """Headers, each given as name=value."""
    headers = {}
    for one in given:
        name, separator, value = one.partition("=")
        if not separator or not name:
            raise InvalidOption(f"header {one!r} is not name=value", remedy="give one such as --header tenant=acme")
        headers[name] = value
    return headers or None


def named_value(given: str, flag: str, *, example: str) -> tuple[str, Any]:
    """An option given as NAME=VALUE. The value is read as in a TOML file, and is a text if it is nothing else there."""
    name, separator, value = given.partition("=")
    if not separator or not name:
        raise usage_error(f"{flag} {given!r} is not NAME=VALUE", remedy=f"give one such as {flag} {example}")
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return name, value
    return name, value if isinstance(found, date | time) else found


def as_moment(given: str | None, *, name: str) -> datetime | None:
    """A time in ISO format; without an offset it is local time."""
    if given is None:
        return None
    try:
        return datetime.fromisoformat(given).astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidOption(
            f"{name} {given!r} is not a point in time",
            remedy="give one such as 2030-01-31T18:00 or 2030-01-31T18:00:00+00:00",
        ) from error


def as_past_moment(given: str | None, *, name: str) -> datetime | None:
    """A time in ISO format, or how long ago: 2h."""
    if given is None:
        return None
    try:
        return datetime.now(UTC) - as_timedelta(given)
    except InvalidOption:
        return as_moment(given, name=name)
    except OverflowError as error:
        raise InvalidOption(f"{name} {given!r} is too long ago", remedy="give a shorter time, such as 30d") from error


def as_start(given: str, *, name: str) -> Start:
    """A position in a log: now, beginning, a message's id, a time, or how long ago: 2h."""
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
            f"{name} {given!r} is not a position in a log",
            remedy="give now, beginning, a message's id, a time such as 2030-01-31T18:00, or how long ago: 2h",
        ) from error
    assert moment is not None
    return Start.at(moment)


def first_position(start: str | None, at: str | None) -> Start | datetime | None:
    """The position at which a new group begins: --from, or --at, which goes with --mode timestamp."""
    if start is not None and at is not None:
        raise InvalidOption("--from and --at are both given", remedy="give one; --at goes with --mode timestamp")
    return as_past_moment(at, name="--at") if start is None else as_start(start, name="--from")


def as_duration(given: str | None, *, name: str) -> timedelta | None:
    """A duration: 30s, 5m, 24h, or a number of seconds."""
    return None if given is None else as_timedelta(given, name=name)


def with_durations(given: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The options that are given; those with these names are durations."""
    return {
        name: as_duration(value, name=flag_of(name)) if name in names else value
        for name, value in given.items()
        if value is not None
    }


def flag_of(option_name: str) -> str:
    return f"--{option_name.replace('_', '-')}"


def confirm(question: str) -> None:
    """Ask on stderr. Refuse to go on unless the answer is yes."""
    sys.stderr.write(f"{visible(question)} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        say(to=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise refusal("not confirmed, nothing was done", remedy="answer y, or add --yes")


def only_one(**flags: Any) -> str | None:
    """The name of the flag that is set, or None. Refuses several."""
    chosen = [name for name, is_set in flags.items() if is_set]
    if len(chosen) > 1:
        listed = " and ".join(map(flag_of, chosen))
        raise usage_error(f"{listed} exclude each other", remedy="give one of them")
    return chosen[0] if chosen else None
