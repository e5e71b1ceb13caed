"""Relaying messages to other brokers, by groups whose handler sends to a sink."""

from postbus.relay.envelope import Envelope, Form
from postbus.relay.kafka import KafkaSink
from postbus.relay.nats import NatsSink
from postbus.relay.plan import RelayOptions
from postbus.relay.postbus import PostbusSink
from postbus.relay.pubsub import PubSubSink
from postbus.relay.rabbitmq import RabbitSink
from postbus.relay.redis import RedisSink
from postbus.relay.relay import EventRegistry, Relay
from postbus.relay.sink import NotNow, Parcel, Sink
from postbus.relay.sinks import NullSink
from postbus.relay.webhook import WebhookSink

__all__ = [
    "Envelope",
    "EventRegistry",
    "Form",
    "KafkaSink",
    "NatsSink",
    "NotNow",
    "NullSink",
    "Parcel",
    "PostbusSink",
    "PubSubSink",
    "RabbitSink",
    "RedisSink",
    "Relay",
    "RelayOptions",
    "Sink",
    "WebhookSink",
]
