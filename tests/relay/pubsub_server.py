"""A server that speaks the API of Pub/Sub, and keeps published messages."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from google.pubsub_v1.types import PublishRequest, PublishResponse

grpc: Any = pytest.importorskip("grpc")  # which has no types


class PubSubServer:
    """Published messages in order; `refusals` are answered first."""

    def __init__(self) -> None:
        self.address = ""
        self.published: list[tuple[str, Any]] = []
        self.refusals: list[Any] = []

    def publish(self, request: PublishRequest, context: Any) -> PublishResponse:
        if self.refusals:
            context.abort(self.refusals.pop(0), "not this one")
        first = len(self.published)
        self.published += [(request.topic, message) for message in request.messages]
        return PublishResponse(message_ids=[str(first + n) for n in range(len(request.messages))])


@contextmanager
def pubsub_server(port: int = 0) -> Iterator[PubSubServer]:
    """Run such a server on loopback."""
    served = PubSubServer()
    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.unary_unary_rpc_method_handler(
        served.publish,
        request_deserializer=PublishRequest.deserialize,
        response_serializer=PublishResponse.serialize,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", {"Publish": handler}),)
    )
    served.address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield served
    finally:
        server.stop(None).wait()
