"""Relaying: messages go on to other brokers, by groups whose handler is a sink."""

from postbus.relay.envelope import Envelope, Form
from postbus.relay.sink import Parcel, Sink
from postbus.relay.webhook import WebhookSink

__all__ = ["Envelope", "Form", "Parcel", "Sink", "WebhookSink"]
