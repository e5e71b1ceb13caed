"""Envelopes: attributes, CloudEvents, and targets."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from postbus.relay import Envelope, Form
from postbus.relay.envelope import Unfit
from relay.parcels import event_id, message

EVENT = {
    "event-type": "order.placed", "aggregate-type": "order", "aggregate-id": "7", "event-version": "2",
    "tenant": "acme", "traceparent": "00-a-b-01", "tracestate": "x=y",
}  # fmt: skip
NOT_OF_EVENTS = {name: EVENT[name] for name in ("tenant", "traceparent", "tracestate")}


def envelope(form: Form, target: str = "{topic}", **options: Any) -> Envelope:
    return Envelope(target, form=form, source="/shop", **options)


def test_attributes_put_the_event_into_headers() -> None:
    """The payload is the body, and other headers are kept."""
    made = envelope(Form.ATTRIBUTES).parcel(message(5, headers=EVENT, correlation_id="c"))
    assert (made.id, made.target, made.body, made.content_type) == (
        event_id(5),
        "orders",
        b'{"n": 1}',
        "application/json",
    )
    assert made.headers == NOT_OF_EVENTS | {
        "event_id": event_id(5), "event_type": "order.placed", "aggregate_type": "order", "aggregate_id": "7",
        "event_version": "2", "created_at": "2030-01-31T18:00:00Z", "correlation_id": "c",
    }  # fmt: skip


def test_binary_cloudevents_put_attributes_into_headers() -> None:
    """The payload is the body."""
    made = envelope(Form.CLOUDEVENTS).parcel(message(5, headers=EVENT, key="k"))
    assert made.body == b'{"n": 1}'
    assert made.headers == NOT_OF_EVENTS | {
        "ce-specversion": "1.0", "ce-id": event_id(5), "ce-source": "/shop", "ce-type": "order.placed",
        "ce-subject": "7", "ce-time": "2030-01-31T18:00:00Z", "ce-partitionkey": "k", "ce-aggregatetype": "order",
        "ce-eventversion": "2",
    }  # fmt: skip


def test_message_without_a_type_uses_its_topic() -> None:
    """CloudEvents need a type."""
    made = envelope(Form.CLOUDEVENTS).parcel(message())
    assert made.headers["ce-type"] == "orders"
    assert "ce-subject" not in made.headers


@pytest.mark.parametrize(
    ("payload", "content_type", "data"),
    [
        (b'{"n": 12345678901234567890}', "application/json", {"data": {"n": 12345678901234567890}}),
        ("Zoë".encode(), "text/plain; charset=utf-8", {"data": "Zoë"}),
        (b"\x00\xff", "application/octet-stream", {"data_base64": base64.b64encode(b"\x00\xff").decode()}),
    ],
)
def test_structured_cloudevent_is_one_json_object(payload: bytes, content_type: str, data: dict[str, Any]) -> None:
    """The trace is among its attributes, and the payload is embedded as JSON, text or base64."""
    given = message(5, headers=EVENT, payload=payload, content_type=content_type)
    made = envelope(Form.CLOUDEVENTS_STRUCTURED).parcel(given)
    assert made.content_type == "application/cloudevents+json"
    told = json.loads(made.body)
    assert {
        name: told.pop(name) for name in list(told) if name.startswith("data") and name != "datacontenttype"
    } == data
    assert told == {
        "specversion": "1.0", "id": event_id(5), "source": "/shop", "type": "order.placed", "subject": "7",
        "time": "2030-01-31T18:00:00Z", "partitionkey": "7", "aggregatetype": "order", "eventversion": "2",
        "datacontenttype": content_type, "traceparent": "00-a-b-01", "tracestate": "x=y",
    }  # fmt: skip


def test_key_is_the_aggregate_unless_given() -> None:
    """Sinks keep the order of an aggregate's events by it."""
    made = envelope(Form.ATTRIBUTES)
    assert made.parcel(message(headers=EVENT)).key == "7"
    assert made.parcel(message(headers=EVENT, key="k")).key == "k"
    assert made.parcel(message()).key is None


def test_target_can_be_a_template() -> None:
    """The placeholders are filled from the message."""
    target = "{topic}/{event_type}/{aggregate_type}/{aggregate_id}/{key}/{{x}}"
    made = envelope(Form.ATTRIBUTES, target).parcel(message(headers=EVENT, key="k"))
    assert made.target == "orders/order.placed/order/7/k/{x}"
    quoted = envelope(Form.ATTRIBUTES, "http://x/{key}", quote=lambda text: text.replace("/", "%2F"))
    assert quoted.parcel(message(key="a/b")).target == "http://x/a%2Fb"


@pytest.mark.parametrize(("target", "what"), [("{event_type}", "a header event-type"), ("x.{key}", "a key")])
def test_target_that_lacks_a_value_is_refused(target: str, what: str) -> None:
    """Such a message can never reach its target."""
    with pytest.raises(Unfit, match=f"needs {what}, and the message has none"):
        envelope(Form.ATTRIBUTES, target).parcel(message())


def test_replayed_message_has_another_id() -> None:
    """The id is for the sink; the event's id stays."""
    made = envelope(Form.ATTRIBUTES, route="relay-nats", suffix="/replay-1").parcel(message(5))
    assert (made.id, made.headers["event_id"]) == (f"{event_id(5)}:relay-nats/replay-1", event_id(5))


def test_given_event_id_is_used_in_every_form() -> None:
    """It appears once, and two messages with the same one are still two for the sink."""
    brought = {"event-id": "order-1/paid", "tenant": "acme"}
    attributes = envelope(Form.ATTRIBUTES, route="r").parcel(message(5, headers=brought))
    assert {"event_id": "order-1/paid", "tenant": "acme"}.items() <= attributes.headers.items()
    assert "event-id" not in attributes.headers
    assert attributes.id == f"order-1/paid:{event_id(5)}:r"
    assert envelope(Form.ATTRIBUTES, route="r").parcel(message(6, headers=brought)).id != attributes.id
    assert envelope(Form.CLOUDEVENTS).parcel(message(5, headers=brought)).headers["ce-id"] == "order-1/paid"
    structured = envelope(Form.CLOUDEVENTS_STRUCTURED).parcel(message(5, headers=brought))
    assert json.loads(structured.body)["id"] == "order-1/paid"


def test_deduplication_id_fits_every_broker() -> None:
    """RabbitMQ accepts 255 bytes, so a longer id is replaced by its hash."""
    brought = {"event-id": "x" * 200}
    made = [envelope(Form.ATTRIBUTES, route="r" * n).parcel(message(5, headers=brought)) for n in (199, 200)]
    assert all(len(one.id) < 255 for one in made)
    assert made[0].id != made[1].id
