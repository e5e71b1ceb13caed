"""Relaying: messages go on to other brokers, by groups whose handler is a sink."""

from postbus.relay.envelope import Envelope, Form
from postbus.relay.nats import NatsSink
from postbus.relay.plan import RelayOptions
from postbus.relay.relay import Registry, Relay
from postbus.relay.sink import Parcel, Sink
from postbus.relay.webhook import WebhookSink

__all__ = ["Envelope", "Form", "NatsSink", "Parcel", "Registry", "Relay", "RelayOptions", "Sink", "WebhookSink"]
