"""The registry of event types, by name and by the class of their payloads."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar, Unpack
from uuid import UUID

import msgspec

from postbus._content.codec import Decoder, decoder_for, encode, is_pydantic, is_storable
from postbus._content.identity import AGGREGATE_ID, AGGREGATE_TYPE, EVENT_HEADERS, EVENT_TYPE, EVENT_VERSION
from postbus._content.names import check_topic_name
from postbus._content.outgoing import outgoing
from postbus.errors import InvalidEvent, InvalidOption, PayloadNotDecodable, UnreadableEvent
from postbus.message import Message, Outgoing, PublishOptions
from postbus.options import is_count

C = TypeVar("C", bound=type)
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
U = TypeVar("U", bound=Upcaster)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclasses.dataclass(frozen=True, eq=False)
class EventType:
    """A registered type of event."""

    name: str
    topic: str
    aggregate: str
    """The type of what the event is about: an order, a license."""
    version: int
    payload: type
    registry: Registry

    @cached_property
    def decoder(self) -> Decoder:
        """The decoder of the payload. It is made at its first use, because a class may refer to later classes."""
        try:
            return decoder_for(self.payload)
        except Exception as error:  # annotations are code, and may raise anything
            raise InvalidEvent(
                f"the payload of event type {self.name!r} cannot be decoded: {error}",
                remedy="annotate its fields with types that JSON can express",
            ) from error


class Registry:
    """The events of an application: their topics, their aggregates, their payloads and their versions.

    `title` and `version` are for exported documents.
    """

    def __init__(self, *, title: str = "Events", version: str = "1.0.0") -> None:
        self.title = title
        self.version = version
        self._types: dict[str, EventType] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}

    def event(self, name: str, *, topic: str, aggregate: str, version: int = 1) -> Callable[[C], C]:
        """Register a class as the payload of an event type: a msgspec Struct, a dataclass or a pydantic model."""
        _check_name("event type", name)
        _check_name("aggregate", aggregate)
        check_topic_name(topic)
        _check_version(version)

        def register(payload: C) -> C:
            if not _is_payload(payload):
                raise InvalidEvent(
                    f"{payload!r:.200} is not a class for payloads",
                    remedy="use a msgspec Struct, a dataclass or a pydantic model",
                )
            if name in self._types:
                raise InvalidEvent(
                    f"event type {name!r} is registered already, for {self._types[name].payload.__qualname__}",
                    remedy="to change it, edit that class, raise its version and give an upcaster; or use another name",
                )
            if payload in _of_class:
                raise InvalidEvent(
                    f"{payload.__qualname__} is the payload of event type {_of_class[payload].name!r} already",
                    remedy="give each event type a class of its own",
                )
            self._types[name] = _of_class[payload] = EventType(name, topic, aggregate, version, payload, self)
            return payload

        return register

    def upcast(self, name: str, *, from_version: int) -> Callable[[U], U]:
        """Register a function that converts a payload, a dict, to the next version. The functions are chained."""
        _check_name("event type", name)
        _check_version(from_version)

        def register(upcaster: U) -> U:
            if not callable(upcaster):
                raise InvalidOption(f"{upcaster!r:.200} is not a function", remedy="give one that takes a dict")
            if (name, from_version) in self._upcasters:
                raise InvalidOption(
                    f"event type {name!r} has an upcaster from version {from_version} already", remedy="remove one"
                )
            self._upcasters[name, from_version] = upcaster
            return upcaster

        return register

    @property
    def types(self) -> Mapping[str, EventType]:
        """The event types by name, as they were registered."""
        return types.MappingProxyType(self._types)

    def readable_versions(self, name: str) -> list[int]:
        """The versions of an event type that can be read: the current one, and those with upcasters to it."""
        oldest = current = self._types[name].version
        while (name, oldest - 1) in self._upcasters:
            oldest -= 1
        return list(range(oldest, current + 1))

    def problems(self) -> list[str]:
        """Find inconsistencies: upcasters that lead nowhere, classes that have no decoder."""
        found = []
        for name, from_version in sorted(self._upcasters):
            if name not in self._types:
                found.append(f"{name}: an upcaster from version {from_version}, but no such event type")
            elif from_version not in self.readable_versions(name)[:-1]:
                current = self._types[name].version
                found.append(f"{name}: the upcaster from version {from_version} does not lead to version {current}")
        for event_type in self._types.values():
            try:
                _ = event_type.decoder
            except InvalidEvent as error:
                found.append(f"{event_type.name}: {error}")
        return found

    def check(self, message: Message) -> Any:
        """The event of a message, in its current version. Raises UnreadableEvent: trying again would not help."""
        event_type = self.type_of(message)
        for name, wanted in ((AGGREGATE_TYPE, event_type.aggregate), (AGGREGATE_ID, None)):
            found = message.headers.get(name)
            if not found or (wanted is not None and found != wanted):
                raise UnreadableEvent(
                    f"event {event_type.name!r} has the header {name} {found!r}",
                    remedy=f"it is {wanted!r}" if wanted else "it names what the event is about",
                )
        try:
            return event_type.decoder(*self._current(event_type, message))
        except UnreadableEvent:
            raise
        except PayloadNotDecodable as error:
            raise UnreadableEvent(
                f"the payload of event {event_type.name!r} is invalid: {error}",
                remedy="publish what its class declares; bus.emit() checks that",
            ) from error

    def type_of(self, message: Message) -> EventType:
        """The event type of a message."""
        name = message.headers.get(EVENT_TYPE)
        event_type = self._types.get(name or "")
        if event_type is None:
            raise UnreadableEvent(
                f"event type {name!r} is not in the registry" if name else f"the message has no header {EVENT_TYPE}",
                remedy="register it, or publish by bus.emit()",
            )
        return event_type

    def _current(self, event_type: EventType, message: Message) -> tuple[bytes, str]:
        """The payload in its current version, with its content type."""
        version = self._version_of(event_type, message)
        if version == event_type.version:
            return message.payload, message.content_type
        payload = _AS_DICT(message.payload, message.content_type)
        for step in range(version, event_type.version):
            try:
                payload = self._upcasters[event_type.name, step](payload)
            except Exception as error:  # the user's code may raise anything
                raise UnreadableEvent(
                    f"event {event_type.name!r} cannot be brought from version {step} to {step + 1}: "
                    f"{type(error).__name__}: {error}",
                    remedy="correct that upcaster, and redrive the message",
                ) from error
        try:
            return encode(payload)
        except Exception as error:
            raise UnreadableEvent(
                f"the upcasters of event {event_type.name!r} gave no payload: {error}",
                remedy="return a dict of JSON values from each, and redrive the message",
            ) from error

    def _version_of(self, event_type: EventType, message: Message) -> int:
        version = message.headers.get(EVENT_VERSION, "1")
        readable = self.readable_versions(event_type.name)
        if not version.isascii() or not version.isdecimal() or int(version) not in readable:
            raise UnreadableEvent(
                f"event {event_type.name!r} has version {version}, which is not known here",
                remedy=f"register an upcaster, or update this program; it knows {', '.join(map(str, readable))}",
            )
        return int(version)


_of_class: dict[type, EventType] = {}
_AS_DICT = decoder_for(dict[str, Any])


def emission(event: Any, *, aggregate_id: str | int | UUID, **options: Unpack[PublishOptions]) -> tuple[str, Outgoing]:
    """The topic and the message for an event. Raises InvalidEvent before anything is written."""
    event_type = _of_class.get(type(event))
    if event_type is None:
        raise InvalidEvent(
            f"{type(event).__qualname__} is not an event", remedy="put @registry.event(…) above its class"
        )
    aggregate_text = _aggregate_text(aggregate_id)
    headers = options.get("headers") or {}
    if isinstance(headers, Mapping) and (taken := [name for name in EVENT_HEADERS if name in headers]):
        raise InvalidOption(f"header {taken[0]} is given", remedy="omit it: the registry sets it")
    try:
        event_type.decoder(*encode(event))  # constructors do not check types
    except PayloadNotDecodable as error:
        raise InvalidEvent(
            f"the payload of event {event_type.name!r} is invalid: {error}", remedy="give what its class declares"
        ) from error
    message = outgoing(event, **options)
    values = (event_type.name, str(event_type.version), event_type.aggregate, aggregate_text)
    own = dict(zip(EVENT_HEADERS, values, strict=True))
    key = aggregate_text if message.key is None else message.key  # events of one aggregate keep their order
    return event_type.topic, msgspec.structs.replace(message, headers={**headers, **own}, key=key)


class WantedEvents:
    """The event types that a handler accepts, by the classes in the annotation of its parameter."""

    def __init__(self, event_types: Sequence[EventType]) -> None:
        self._registry = event_types[0].registry
        self._names = {one.name for one in event_types}

    def takes(self, message: Message) -> bool:
        """Whether the handler gets a message: unless its event has another known type. Bad events are refused later."""
        name = message.headers.get(EVENT_TYPE, "")
        return name in self._names or name not in self._registry.types

    def payload(self, message: Message) -> Any:
        """The event of a message. Raises UnreadableEvent."""
        event = self._registry.check(message)
        if not self.takes(message):
            raise UnreadableEvent(
                f"event {message.headers[EVENT_TYPE]!r} is not one that this handler accepts",
                remedy=f"it accepts {', '.join(sorted(self._names))}; annotate it with a union of event classes",
            )
        return event


def wanted_events(annotation: Any) -> WantedEvents | None:
    """The registered classes in the annotation of a handler's parameter: one class, or a union of some."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    classes = typing.get_args(annotation) if is_union else (annotation,)
    known = [_of_class[one] for one in classes if isinstance(one, type) and one in _of_class]
    if not known:
        return None
    if len(known) < len(classes) or len({id(one.registry) for one in known}) > 1:
        raise TypeError(f"{annotation} is a union of events with something else, or with events of another registry")
    return WantedEvents(known)


def _is_payload(kind: Any) -> bool:
    return isinstance(kind, type) and (
        hasattr(kind, "__struct_fields__") or dataclasses.is_dataclass(kind) or is_pydantic(kind)
    )


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(
            f"bad {what} {name!r:.220}",
            remedy="a name has 1 to 100 letters, digits or . _ - and starts with a letter, a digit or _",
        )


def _check_version(version: object) -> None:
    if not is_count(version):
        raise InvalidOption(f"bad version {version!r}", remedy="versions are whole numbers from 1 on")


def _aggregate_text(aggregate_id: object) -> str:
    if isinstance(aggregate_id, str | int | UUID) and not isinstance(aggregate_id, bool):
        text = str(aggregate_id)
        if 1 <= len(text) <= 500 and is_storable(text):
            return text
    raise InvalidEvent(
        f"bad aggregate id {aggregate_id!r:.220}", remedy="give a UUID, a number, or a text of 1 to 500 characters"
    )
