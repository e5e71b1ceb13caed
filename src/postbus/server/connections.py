"""Connections of clients. Before the server knows a caller, it limits bytes, connections and time.

uvicorn limits none of these, so its protocol is extended here. A connection belongs to a stranger until a request on it
has been authenticated. Strangers have slots of their own, so they cannot keep authenticated clients out.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from http import HTTPStatus

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from postbus.errors import InvalidInput, NotServed, PostbusError, RequestTooLarge
from postbus.server.problems import MEDIA_TYPE, problem
from postbus.server.settings import ConnectionLimits

MOST_HEAD_BYTES = 64 << 10
MOST_HEADERS = 100
KEY = "postbus.connection"
"""The key of the connection in the state of a request."""
_LONG_HEAD = f"address and headers have more than {MOST_HEAD_BYTES} bytes"
_MOST_PIPELINED = 100
_SLOWEST = 16 << 10  # bytes of a body for which its client has another second
_FRAMING = 16  # bytes that a client may send for each byte of a body, because chunks have headers, …
_MOST_FRAMING = 1 << 20  # … and bytes beyond these
_STALLED = 30.0  # seconds for which a client may read nothing of an answer
_LINGERING = 1.0  # seconds for a refused client to read why, before its connection is closed
_MOST_DISCARDED = 1 << 20  # bytes that a refused client may still send
_DRAINING = 2.0  # seconds for a client to finish the body of a request that was answered already
_TICK = 0.5  # seconds between two looks at all connections


@dataclass
class ConnectionSlots:
    """The connections of a server: those of strangers, the oldest first, and those of known callers."""

    limits: ConnectionLimits
    strangers: dict[Connection, None] = field(default_factory=dict)
    known: dict[Connection, None] = field(default_factory=dict)

    def enter(self, newcomer: Connection) -> None:
        """Add a connection, a stranger's at first. If there are too many, close the oldest of strangers."""
        self.strangers[newcomer] = None
        if len(self.strangers) + len(self.known) > self.limits.connections + self.limits.spare:
            oldest = next(iter(self.strangers))
            oldest.refuse(_full())
            oldest.hang_up()

    def become_known(self, connection: Connection) -> None:
        """Note that a request was authenticated. If known callers have all their slots, close an idle one."""
        if connection in self.known or connection not in self.strangers:
            return
        if len(self.known) >= self.limits.connections:
            idle = next((one for one in self.known if one.is_idle), None)
            if idle is None:
                connection.end_after_answer()
                raise _full()
            idle.hang_up()
        del self.strangers[connection]
        self.known[connection] = None

    def leave(self, connection: Connection) -> None:
        self.strangers.pop(connection, None)
        self.known.pop(connection, None)

    async def watch(self, stop: asyncio.Event) -> None:
        """Close connections whose clients take too long, until `stop` is set."""
        while not stop.is_set():
            now = time.monotonic()
            for one in (*self.strangers, *self.known):
                one.check(now)
            await asyncio.sleep(_TICK)


def _full() -> NotServed:
    return NotServed(
        "all connections of the server are in use",
        remedy="try again later, use fewer connections, or start the server with a larger --max-connections",
    )


class Connection(HttpToolsProtocol):
    """One connection, which takes one of the server's slots."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, slots: ConnectionSlots) -> None:
        super().__init__(config, server_state, app_state={})
        self.slots = slots
        self._reading_since: float | None = None
        """When the client began to send the current request; None if it has sent all of it."""
        self._in_head = True
        self._head_bytes = 0
        self._headers = 0
        self._body_bytes = 0
        self._raw_bytes = 0
        """Bytes of the current head or body, except those that arrived in one piece with the part before it."""
        self._problem: tuple[PostbusError, int | None] | None = None
        self._ignores_input = False
        self._discarded = 0
        self._is_refused = False
        self._unsent = 0
        self._unsent_since = 0.0

    # what uvicorn calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._reading_since = self._unsent_since = time.monotonic()
        self.slots.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.slots.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        if self._reading_since is None:
            self._reading_since = time.monotonic()
        self._raw_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Only HTTP/1.1 is served: answer the request, and ignore what follows.
            self._ignores_input, self._reading_since = True, None
            self.end_after_answer()
        except httptools.HttpParserError:
            not_http = InvalidInput("this is not an HTTP/1.1 request", remedy="send one: see RFC 9112")
            self.refuse(*(self._problem or (not_http, None)))
        else:
            self._check_raw()

    def _discard(self, count: int) -> None:
        """Ignore what a refused client goes on to send, so that it can read the refusal. Abort if that is too much."""
        self._discarded += count
        if self._discarded > _MOST_DISCARDED:
            self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        self.hang_up()

    # what the parser calls

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._fail(
                RequestTooLarge(f"{_MOST_PIPELINED} requests wait for answers already", remedy="wait for answers")
            )
        super().on_message_begin()
        self.scope["state"][KEY] = self
        if self._reading_since is None:
            self._reading_since = time.monotonic()
        self._in_head = True
        self._head_bytes = self._headers = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._count_head(len(name) + len(value) + 4)
        if self._headers > MOST_HEADERS:
            self._fail(_head_too_large(f"the request has more than {MOST_HEADERS} headers"), 431)
        if self._in_head:  # trailers of a body are left out: uvicorn would add them to the headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._raw_bytes = 0
        self._reading_since = time.monotonic()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._raw_bytes = 0
        self._reading_since = None
        super().on_message_complete()

    def _count_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > MOST_HEAD_BYTES:
            self._fail(_head_too_large(_LONG_HEAD), 431)

    def _fail(self, error: PostbusError, status: int | None = None) -> None:
        """End parsing. The parser wraps what is raised here in an error of its own."""
        self._problem = error, status
        raise error

    def _check_raw(self) -> None:
        """Limit what the parser does not report: a header that does not end, and extensions of chunks."""
        if self._reading_since is None:
            return
        if self._in_head and self._raw_bytes > MOST_HEAD_BYTES:
            self.refuse(_head_too_large(_LONG_HEAD), 431)
        elif not self._in_head and self._raw_bytes > _MOST_FRAMING + _FRAMING * self._body_bytes:
            self.refuse(RequestTooLarge("the chunks of the body are mostly framing", remedy="send larger chunks"))

    # ending

    @property
    def is_idle(self) -> bool:
        """Whether no request is being sent or answered."""
        return self._reading_since is None and (self.cycle is None or self.cycle.response_complete)

    def end_after_answer(self) -> None:
        """Close the connection once the last request is answered."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def hang_up(self) -> None:
        """Close the connection. Do not wait for a client that does not read."""
        self.slots.leave(self)
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def refuse(self, error: PostbusError, status: int | None = None) -> None:
        """Answer with an error, and ignore further input. The connection is closed a moment later."""
        if self._is_refused or self.transport.is_closing():
            return
        self._ignores_input = self._is_refused = True
        self._reading_since = time.monotonic()
        self._unset_keepalive_if_required()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._in_head or cycle.response_started or self.pipeline:
                # An earlier request must be answered first: its client would take the refusal for that answer.
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(self._refusal(error, status))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _refusal(self, error: PostbusError, status: int | None) -> bytes:
        answer = problem(error, status=status)
        phrase = HTTPStatus(answer.status_code or 400)
        headers = [
            *self.server_state.default_headers,
            *((name.encode(), value.encode()) for name, value in answer.headers.items()),
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(answer.content)).encode()),
            (b"connection", b"close"),
        ]
        lines = [b"HTTP/1.1 %d %s" % (phrase, phrase.phrase.encode()), *(b"%s: %s" % one for one in headers)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + answer.content

    def check(self, now: float) -> None:
        """Close the connection if its client takes too long to send, or to read."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        if now - self._unsent_since > _STALLED:
            self.transport.abort()
        elif self._reading_since is not None and not self.flow.read_paused:
            self._check_reading(now - self._reading_since)

    def _check_reading(self, seconds: float) -> None:
        limits = self.slots.limits
        if self._is_refused:
            if seconds > _LINGERING:
                self.hang_up()
        elif self._in_head:
            if seconds > limits.head_timeout:
                self._refuse_late("address and headers", limits.head_timeout)
        elif self.cycle is not None and self.cycle.response_complete:
            if seconds > _DRAINING:
                self.hang_up()
        elif seconds > limits.body_timeout + self._body_bytes / _SLOWEST:
            self._refuse_late("the body", limits.body_timeout)

    def _refuse_late(self, part: str, seconds: float) -> None:
        late = NotServed(
            f"{part} did not arrive within {seconds:g} seconds", remedy="send the whole request without pauses"
        )
        self.refuse(late, HTTPStatus.REQUEST_TIMEOUT)


def _head_too_large(message: str) -> RequestTooLarge:
    return RequestTooLarge(message, remedy="send fewer or shorter headers")
