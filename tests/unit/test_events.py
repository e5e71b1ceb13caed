"""The registry: registering, emitting and reading events, and upcasting older versions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from postbus import InvalidEvent, InvalidOption, InvalidTopicName, Message, PayloadNotSerializable, UnreadableEvent
from postbus._content.codec import encode
from postbus.events import Registry, emission, wanted_events

registry = Registry()


@registry.event("license_status_changed", topic="licenses", aggregate="license", version=3)
class LicenseStatusChanged(msgspec.Struct, rename="camel"):
    license_id: str
    status: Literal["pending", "verified", "rejected"]
    reason: str | None = None


@registry.upcast("license_status_changed", from_version=1)
def named(payload: dict[str, Any]) -> dict[str, Any]:
    return {"licenseId": payload["id"], "status": payload["status"]}


@registry.upcast("license_status_changed", from_version=2)
def lower(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "status": payload["status"].lower()}


@registry.event("store_opened", topic="stores", aggregate="store")
@dataclass
class StoreOpened:
    name: str
    employees: int = 1


@registry.event("store_closed", topic="stores", aggregate="store")
class StoreClosed(pydantic.BaseModel):
    reason: str = pydantic.Field(min_length=3)


EVENT = LicenseStatusChanged("l-1", "pending")
HEADERS = {
    "event-type": "license_status_changed",
    "event-version": "3",
    "aggregate-type": "license",
    "aggregate-id": "l-1",
}


def message(payload: Any = EVENT, content_type: str | None = None, **headers: str | None) -> Message:
    told = {**HEADERS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    encoded, found = encode(payload)
    kept = {name: value for name, value in told.items() if value is not None}
    return Message(1, "licenses", encoded, content_type or found, None, kept, None, 4, 1, datetime.now(UTC))


def test_event_becomes_a_message_of_its_topic() -> None:
    """Type, version and aggregate are in headers, and the key is the aggregate's id."""
    topic, sent = emission(EVENT, aggregate_id="l-1", correlation_id="c", headers={"trace": "t"}, priority=9)

    assert topic == "licenses"
    assert (sent.payload, sent.key, sent.correlation_id, sent.priority) == (EVENT, "l-1", "c", 9)
    assert sent.headers == {**HEADERS, "trace": "t"}


@pytest.mark.parametrize(("given", "kept"), [(7, "7"), (UUID(int=7), str(UUID(int=7))), ("é", "é")])
def test_aggregate_id_may_be_a_text_a_number_or_a_uuid(given: Any, kept: str) -> None:
    """It is stored as a text."""
    _, sent = emission(EVENT, aggregate_id=given)
    assert sent.headers is not None
    assert (sent.key, sent.headers["aggregate-id"]) == (kept, kept)


def test_explicit_key_overrides_the_aggregate() -> None:
    """The order may be kept by something else."""
    _, sent = emission(EVENT, aggregate_id="l-1", key="store-5")
    assert sent.key == "store-5"


@pytest.mark.parametrize("aggregate_id", ["", None, True, 1.5, "x" * 501, "nul\0", "\ud800"])
def test_bad_aggregate_id_is_refused(aggregate_id: Any) -> None:
    """It is refused before anything is written."""
    with pytest.raises(InvalidEvent, match="aggregate id"):
        emission(EVENT, aggregate_id=aggregate_id)


def unchecked(given: Any) -> Any:
    """Return the argument as a program without a type checker sees it."""
    return given


@pytest.mark.parametrize(
    "event",
    [
        unchecked(LicenseStatusChanged)("l-1", "lost"),
        unchecked(LicenseStatusChanged)(1, "pending"),
        unchecked(StoreOpened)(name=None),
        StoreClosed.model_construct(reason="no"),
    ],
)
def test_payload_that_contradicts_its_class_is_refused(event: Any) -> None:
    """Constructors check nothing, and the registry does before anything is written."""
    with pytest.raises(InvalidEvent, match="is invalid"):
        emission(event, aggregate_id=1)


def test_event_that_json_cannot_express_is_refused() -> None:
    """The error is that of other payloads."""

    @Registry().event("measured", topic="t", aggregate="a")
    class Measured(msgspec.Struct):
        value: float

    with pytest.raises(PayloadNotSerializable, match="nan"):
        emission(Measured(float("nan")), aggregate_id=1)


@pytest.mark.parametrize("event", [{"licenseId": "l"}, "text", None, object(), LicenseStatusChanged])
def test_object_of_no_registered_class_is_refused(event: Any) -> None:
    """Only objects of registered classes are events."""
    with pytest.raises(InvalidEvent, match="is not an event"):
        emission(event, aggregate_id=1)


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_the_registry_cannot_be_given(name: str) -> None:
    """The registry itself sets them."""
    with pytest.raises(InvalidOption, match=name):
        emission(EVENT, aggregate_id=1, headers={name: "x"})


@pytest.mark.parametrize(
    ("event", "headers"),
    [
        (EVENT, {}),
        (StoreOpened("s", 3), {"event_type": "store_opened", "aggregate_type": "store", "event_version": "1"}),
        (StoreClosed(reason="sold"), {"event_type": "store_closed", "aggregate_type": "store", "event_version": None}),
    ],
)
def test_emitted_event_can_be_read(event: Any, headers: dict[str, Any]) -> None:
    """Structs, dataclasses and models of pydantic are unchanged, and a missing version means 1."""
    assert registry.check(message(event, **headers)) == event


def test_older_versions_are_upcast_to_the_current_one() -> None:
    """They are upcast step by step."""
    assert registry.readable_versions("license_status_changed") == [1, 2, 3]
    first = registry.check(message({"id": "l-1", "status": "PENDING"}, event_version="1"))
    second = registry.check(message({"licenseId": "l-1", "status": "PENDING", "reason": "r"}, event_version="2"))

    assert first == EVENT
    assert second == LicenseStatusChanged("l-1", "pending", "r")


@pytest.mark.parametrize(
    ("payload", "headers", "reason"),
    [
        (EVENT, {"event_type": None}, "the message has no header event-type"),
        (EVENT, {"event_type": "unheard_of"}, "event type 'unheard_of' is not in the registry"),
        (EVENT, {"aggregate_type": "store"}, "has the header aggregate-type 'store' (it is 'license')"),
        (EVENT, {"aggregate_type": None}, "has the header aggregate-type None"),
        (EVENT, {"aggregate_id": None}, "has the header aggregate-id None"),
        (EVENT, {"aggregate_id": ""}, "has the header aggregate-id ''"),
        (
            EVENT,
            {"event_version": "4"},
            "has version 4, which is not known here (register an upcaster, or update this program; it knows 1, 2, 3",
        ),
        (EVENT, {"event_version": "0"}, "has version 0"),
        (EVENT, {"event_version": "two"}, "has version two"),
        (EVENT, {"event_version": "²"}, "has version ²"),
        (None, {}, "is invalid: Expected `object`, got `null`"),
        ({"licenseId": 1, "status": "pending"}, {}, "Expected `str`, got `int` - at `$.licenseId`"),
        ({"licenseId": "l", "status": "lost"}, {}, "Invalid enum value 'lost'"),
        ({"status": "pending"}, {}, "missing required field `licenseId`"),
        (b"\xff", {}, "is invalid"),
        ({"status": "PENDING"}, {"event_version": "1"}, "from version 1 to 2: KeyError: 'id'"),
        ([1], {"event_version": "1"}, "is invalid: Expected `object`, got `array`"),
        ({"id": "l", "status": 7}, {"event_version": "1"}, "from version 2 to 3: AttributeError"),
    ],
)
def test_unreadable_event_has_a_reason(payload: Any, headers: dict[str, Any], reason: str) -> None:
    """It becomes the reason of the dead letter."""
    with pytest.raises(UnreadableEvent) as refused:
        registry.check(message(payload, **headers))
    assert reason in str(refused.value)


def test_missing_step_makes_older_versions_unreadable() -> None:
    """The registry's own check finds it, and upcasters of unknown types."""
    gappy = Registry()

    @gappy.event("a", topic="t", aggregate="x", version=4)
    class A(msgspec.Struct):
        n: int

    for name, version in (("a", 1), ("a", 3), ("a", 4), ("b", 1)):
        gappy.upcast(name, from_version=version)(lambda payload: payload)

    assert gappy.readable_versions("a") == [3, 4]
    assert gappy.problems() == [
        "a: the upcaster from version 1 does not lead to version 4",
        "a: the upcaster from version 4 does not lead to version 4",
        "b: an upcaster from version 1, but no such event type",
    ]
    with pytest.raises(UnreadableEvent, match="it knows 3, 4"):
        gappy.check(message({"n": 1}, event_type="a", aggregate_type="x", event_version="2"))


def test_upcaster_without_a_usable_result_is_reported() -> None:
    """This covers any returned value."""
    for returned, reason in ((object(), "gave no payload"), ([], "is invalid")):
        odd = Registry()

        @odd.event("a", topic="t", aggregate="x", version=2)
        class A(msgspec.Struct):
            n: int

        odd.upcast("a", from_version=1)(lambda payload, returned=returned: returned)
        with pytest.raises(UnreadableEvent, match=reason):
            odd.check(message({"n": 1}, event_type="a", aggregate_type="x", event_version="1"))


def test_class_without_a_decoder_is_a_problem() -> None:
    """It is found by the registry's check, or at its first use."""
    odd = Registry()

    @odd.event("a", topic="t", aggregate="x")
    @dataclass
    class A:
        n: complex

    assert "a: the payload of event type 'a' cannot be decoded" in odd.problems()[0]
    with pytest.raises(InvalidEvent, match="cannot be decoded"):
        emission(A(1j), aggregate_id=1)


@pytest.mark.parametrize("payload", [dict, str, object, 7, None, EVENT, dict[str, int]])
def test_class_that_is_no_payload_is_refused(payload: Any) -> None:
    """An event has a class of its own."""
    with pytest.raises(InvalidEvent, match="is not a class for payloads"):
        Registry().event("a", topic="t", aggregate="x")(payload)


def test_type_and_class_can_be_registered_only_once() -> None:
    """A class belongs to one registry only: it says of which type an object is an event."""

    class Other(msgspec.Struct):
        n: int

    with pytest.raises(InvalidEvent, match="'store_opened' is registered already.*edit that class"):
        registry.event("store_opened", topic="t", aggregate="x")(Other)
    with pytest.raises(InvalidEvent, match="is the payload of event type 'store_opened' already"):
        Registry().event("other", topic="t", aggregate="x")(StoreOpened)
    with pytest.raises(InvalidOption, match="from version 1 already"):
        registry.upcast("license_status_changed", from_version=1)(named)
    with pytest.raises(InvalidOption, match="is not a function"):
        registry.upcast("license_status_changed", from_version=9)(unchecked(7))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": ""}, InvalidOption),
        ({"name": "a b"}, InvalidOption),
        ({"name": 7}, InvalidOption),
        ({"aggregate": "a/b"}, InvalidOption),
        ({"version": 0}, InvalidOption),
        ({"version": True}, InvalidOption),
        ({"version": "1"}, InvalidOption),
        ({"topic": "a b"}, InvalidTopicName),
    ],
)
def test_bad_event_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    """The error comes at registration."""
    given = {"name": "a", "topic": "t", "aggregate": "x", **options}
    with pytest.raises(error):
        Registry().event(given.pop("name"), **given)


def test_events_of_a_handler_follow_from_its_annotation() -> None:
    """It is one event class or a union; other registered events are not for it, and unknown ones are reported."""
    one, both = wanted_events(StoreOpened), wanted_events(StoreOpened | StoreClosed)
    assert one is not None
    assert both is not None
    kinds = ("store_opened", "store_closed", "license_status_changed", "unheard_of", None)
    messages = [message(event_type=kind) for kind in kinds]

    assert [one.takes(each) for each in messages] == [True, False, False, True, True]
    assert [both.takes(each) for each in messages] == [True, True, False, True, True]
    assert wanted_events(int) is wanted_events(dict[str, Any]) is wanted_events(int | None) is None


def test_events_cannot_be_mixed_with_other_types() -> None:
    """The decoder of a message would be ambiguous."""

    @Registry().event("elsewhere", topic="t", aggregate="x")
    class Elsewhere(msgspec.Struct):
        n: int

    for mixed in (StoreOpened | int, StoreOpened | None, StoreOpened | Elsewhere):
        with pytest.raises(TypeError, match="union of events"):
            wanted_events(mixed)
