"""PostgreSQL's protocol, as far as one must understand it to see the end of a transaction pass by."""

from __future__ import annotations

import re
from collections import deque
from enum import Enum

_PLAIN_REQUESTS = (80877103, 80877104)  # for SSL and GSSAPI; the server's answer is one byte
_CANCEL_REQUEST = 80877102
# Also behind a query in the same round trip, which looks at whose transaction it is.
_COMMIT = re.compile(rb"(select [^;]*;)?\s*(commit|end|prepare\s+transaction)\b", re.IGNORECASE)
_BEGIN = re.compile(rb"\s*(begin|start\s+transaction)\b", re.IGNORECASE)
_IDLE = b"I"


class RequestKind(Enum):
    """The messages of a client up to the answer "ready for query"."""

    COMMIT = "a COMMIT, by name"
    AUTOCOMMIT = "a statement outside of a transaction, which commits by itself if it writes"
    OTHER = "anything else"


class Conversation:
    """Follows both directions of one connection."""

    def __init__(self) -> None:
        self._from_client = b""
        self._from_server = b""
        self._is_started = False
        self._plain_answers = 0
        self._prepared: dict[bytes, bytes] = {}
        self._texts: list[bytes] = []
        self._executes = False
        self._status = b""
        self._unanswered: deque[RequestKind] = deque()

    def client_says(self, data: bytes) -> list[tuple[bytes, RequestKind | None]]:
        """Whole messages, in order, in pieces: the bytes, and the unit that they complete, if they do."""
        self._from_client += data
        pieces: list[tuple[bytes, RequestKind | None]] = []
        begin = place = 0
        while message := self._client_message(place):
            place += len(message)
            if (unit := self._heard(message)) is not None:
                pieces.append((self._from_client[begin:place], unit))
                begin = place
        if place > begin:
            pieces.append((self._from_client[begin:place], None))
        self._from_client = self._from_client[place:]
        return pieces

    def server_says(self, data: bytes) -> list[RequestKind]:
        """The units that are answered with this."""
        plain = min(self._plain_answers, len(data))
        self._plain_answers -= plain
        self._from_server += data[plain:]
        answered, place = [], 0
        while (size := _size(self._from_server, place)) and len(self._from_server) >= place + size:
            if self._from_server[place : place + 1] == b"Z":
                self._status = self._from_server[place + 5 : place + 6]
                if self._unanswered:  # not so for the first one, which ends the greeting
                    answered.append(self._unanswered.popleft())
            place += size
        self._from_server = self._from_server[place:]
        return answered

    def _client_message(self, place: int) -> bytes:
        """The whole message that begins there, or nothing."""
        if self._is_started:
            size = _size(self._from_client, place)
        else:
            size = int.from_bytes(self._from_client[place : place + 4], "big")
        rest = self._from_client[place : place + size]
        return rest if size and len(rest) == size else b""

    def _heard(self, message: bytes) -> RequestKind | None:
        if not self._is_started:
            code = int.from_bytes(message[4:8], "big")
            self._plain_answers += code in _PLAIN_REQUESTS
            self._is_started = code not in (*_PLAIN_REQUESTS, _CANCEL_REQUEST)
            return None
        match message[:1]:
            case b"Q":
                self._texts, self._executes = [message[5:]], True
                return self._unit()
            case b"P":
                name, text = message[5:].split(b"\0", 2)[:2]
                self._prepared[name] = text
            case b"B":
                name = message[5:].split(b"\0", 2)[1]
                self._texts.append(self._prepared.get(name, b""))
            case b"E":
                self._executes = True
            case b"S":
                return self._unit()
        return None

    def _unit(self) -> RequestKind:
        texts, executes = self._texts, self._executes
        self._texts, self._executes = [], False
        if not executes:
            unit = RequestKind.OTHER
        elif any(map(_COMMIT.match, texts)):
            unit = RequestKind.COMMIT
        elif self._status == _IDLE and not self._unanswered and not any(map(_BEGIN.match, texts)):
            unit = RequestKind.AUTOCOMMIT
        else:
            unit = RequestKind.OTHER
        self._unanswered.append(unit)
        return unit


def _size(data: bytes, place: int) -> int:
    """The size of the message that begins there; 0 if that is not known yet."""
    if len(data) < place + 5:
        return 0
    return 1 + int.from_bytes(data[place + 1 : place + 5], "big")
