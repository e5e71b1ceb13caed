"""Encoding payloads to bytes, and decoding them.

msgspec writes and reads JSON. The standard library does it for lone surrogates, which msgspec refuses although JSON can
express them as escapes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import msgspec

from postbus._content.content_types import BYTES, JSON, TEXT, is_json
from postbus._content.identity import EVENT_ID, is_event_id
from postbus.errors import InvalidOption, InvalidPayload, PayloadNotDecodable, PayloadNotSerializable, PayloadTooDeep

MAX_DEPTH = 100
MAX_HEADERS = 65536
"""In bytes of UTF-8, for all names and values of a message. The SQL function check_message has the same limit."""


class Decoder:
    """Decodes stored bytes to the type that a handler asks for. Raises only PayloadNotDecodable."""

    def __init__(self, decode: Callable[[bytes, str], Any], lines: Any = None, *, is_shareable: bool = False) -> None:
        self._decode = decode
        self._lines = lines
        """A decoder of msgspec for JSON, which reads many lines at once."""
        self.is_shareable = is_shareable
        """Whether several handlers may share a decoded payload. Plain dicts and lists are too easily changed."""

    def __call__(self, payload: bytes, content_type: str) -> Any:
        try:
            return self._decode(payload, content_type)
        except PayloadNotDecodable:
            raise
        except UnicodeDecodeError as error:
            raise PayloadNotDecodable(f"the payload is not UTF-8: {error}") from error
        except ValueError as error:
            raise PayloadNotDecodable(str(error)) from error
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # code of the handler's type may run here, and raise anything
            raise PayloadNotDecodable(f"{type(error).__name__}: {error}") from error

    def many(self, payloads: Sequence[bytes], content_type: str) -> list[Any]:
        """Decode payloads of one content type."""
        if self._lines is not None and is_json(content_type):
            lines = b"\n".join(payloads)
            if lines.count(b"\n") == len(payloads) - 1:
                decoded = self.lines(lines, len(payloads), content_type)
                if decoded is not None:
                    return decoded
        return [self(payload, content_type) for payload in payloads]

    def lines(self, lines: bytes, count: int, content_type: str) -> list[Any] | None:
        """Decode payloads of which each is a line. None if they must be decoded one by one."""
        if self._lines is None or not is_json(content_type):
            return None
        try:
            decoded: list[Any] = self._lines.decode_lines(lines)
        except Exception:
            return None
        return decoded if len(decoded) == count else None


_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_BRACKET = bytes.maketrans(b"{}", b"[]")


def encode(payload: Any) -> tuple[bytes, str]:
    """Encode a payload. Returns the bytes and their content type."""
    if type(payload) is not dict:  # most payloads are dicts
        if isinstance(payload, bytes | bytearray | memoryview):
            return bytes(payload), BYTES
        if isinstance(payload, str):
            return payload.encode("utf-8", "surrogatepass"), TEXT
    encoded = _encode_json(payload)
    if _may_be_too_deep(encoded):
        _check_depth(encoded)
    return encoded, JSON


def encode_many(payloads: Sequence[Any]) -> tuple[list[bytes], list[str]]:
    """Encode payloads. Returns the bytes and the content types."""
    lines = encode_lines(payloads)
    if lines is not None:
        return lines.split(b"\n")[:-1], [JSON] * len(payloads)
    each = [encode(payload) for payload in payloads]
    return [encoded for encoded, _ in each], [content_type for _, content_type in each]


def encode_lines(payloads: Sequence[Any]) -> bytes | None:
    """Encode dicts as JSON with one line each, all at once. None if one of them needs a closer check."""
    if set(map(type, payloads)) != {dict}:
        return None
    try:
        lines: bytes = _ENCODER.encode_lines(payloads)
    except Exception:
        return None
    if lines.count(b"\n") != len(payloads) or _may_hold_nan(lines):
        return None
    # One payload that is nested too deeply has MAX_DEPTH brackets or more, and each of the others has at least one.
    is_flat = lines.count(b"[") + lines.count(b"{") < MAX_DEPTH + len(payloads)
    return None if not is_flat and any(map(_may_be_too_deep, lines.split(b"\n"))) else lines


def lines_of(lines: bytes, count: int) -> list[bytes]:
    """Split lines into payloads, as the SQL function postbus.lines_of does."""
    found = lines.split(b"\n")[:count]
    return found + [b""] * (count - len(found))


def _encode_json(payload: Any) -> bytes:
    try:
        return _written(payload)
    except PayloadNotSerializable:
        raise
    except RecursionError:
        raise _too_deep() from None
    except Exception as error:  # code of a model may run here, and raise anything
        raise PayloadNotSerializable(
            f"the payload cannot be written as JSON: {error}",
            remedy="publish dicts, lists, dataclasses, msgspec structs, pydantic models, str or bytes",
        ) from error


def _written(payload: Any) -> bytes:
    try:
        encoded = msgspec.json.encode(payload, enc_hook=_as_plain)
    except UnicodeEncodeError:
        _refuse_nan(msgspec.to_builtins(payload, enc_hook=_as_plain))
        plain = msgspec.to_builtins(payload, enc_hook=_as_plain, str_keys=True)
        return json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    if _may_hold_nan(encoded):
        _refuse_nan(msgspec.to_builtins(payload, enc_hook=_as_plain))
    return encoded


def _may_hold_nan(encoded: bytes) -> bool:
    """Whether msgspec may have written NaN or infinity, as a value or as a key."""
    return b"null" in encoded or b'"nan":' in encoded or b'inf":' in encoded


def _as_plain(value: Any) -> Any:
    """Convert an object that msgspec does not know to one that it does."""
    if is_pydantic(type(value)):
        plain = value.model_dump(mode="json", by_alias=True)  # the names by which decoding finds the fields
        _refuse_vanished(value.model_dump(by_alias=True), plain)
        return plain
    raise NotImplementedError(f"objects of type {type(value).__qualname__} are not supported")


_ENCODER = msgspec.json.Encoder(enc_hook=_as_plain)


def _refuse_nan(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadNotSerializable(
                f"the payload holds {value}, which JSON cannot express",
                remedy="publish null or a string instead",
            )
    elif isinstance(value, dict):
        for name, item in value.items():
            _refuse_nan(name)
            _refuse_nan(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_nan(item)


def _refuse_vanished(value: Any, plain: Any) -> None:
    """Refuse NaN and infinity that pydantic has turned into null."""
    if plain is None:
        _refuse_nan(value)
    elif isinstance(plain, dict) and isinstance(value, dict):
        for inner, plain_inner in zip(value.values(), plain.values(), strict=False):
            _refuse_vanished(inner, plain_inner)
    elif isinstance(plain, list) and isinstance(value, list | tuple):
        for inner, plain_inner in zip(value, plain, strict=False):
            _refuse_vanished(inner, plain_inner)


def _may_be_too_deep(encoded: bytes) -> bool:
    return len(encoded) > 2 * MAX_DEPTH and encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH


def _check_depth(encoded: bytes) -> None:
    unescaped = _ESCAPE.sub(b"", encoded) if b"\\" in encoded else encoded
    outside_of_texts = b"".join(unescaped.split(b'"')[::2])
    brackets = outside_of_texts.translate(_ONE_BRACKET, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):  # each step removes the innermost pairs, and with them one level
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise _too_deep()


def check_json(encoded: bytes) -> None:
    """Refuse bytes that are not JSON or are nested too deeply, for payloads that are stored as they are."""
    try:
        if (why := _why_not_json(encoded)) is not None:
            raise InvalidPayload(f"the payload is not JSON: {why}", remedy="correct it, or send it as text or bytes")
    except RecursionError:
        raise _too_deep() from None
    if _may_be_too_deep(encoded):
        _check_depth(encoded)


def holds_json(encoded: bytes, content_type: str) -> bool:
    """Whether a payload really is JSON, and does not only have its content type."""
    try:
        return is_json(content_type) and _why_not_json(encoded) is None
    except RecursionError:
        return False


def _why_not_json(encoded: bytes) -> str | None:
    try:
        msgspec.json.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        try:  # numbers stay text, because some have more digits than Python converts
            json.loads(encoded.decode("utf-8"), parse_int=str, parse_float=str, parse_constant=_no_constant)
        except ValueError as error:
            return str(error)
    return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")


def _too_deep() -> PayloadTooDeep:
    return PayloadTooDeep(
        f"the payload is nested deeper than {MAX_DEPTH} levels",
        remedy="flatten it, or check whether it contains itself",
    )


def encode_headers(headers: Mapping[str, str] | None) -> str | None:
    """Encode headers as a JSON object of strings."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidOption(f"headers {headers!r} are not a mapping", remedy='give {"name": "text", …} or None')
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidOption(f"header {name!r} is not a pair of strings", remedy="convert both to str")
        if not is_storable(name) or not is_storable(value):
            raise InvalidOption(
                f"header {name!r} holds a NUL character or a lone surrogate", remedy="put it into the payload"
            )
        size += len(name.encode()) + len(value.encode())
    if size > MAX_HEADERS:
        raise InvalidOption(
            f"the headers have {size} bytes, more than {MAX_HEADERS}", remedy="put the data into the payload"
        )
    if EVENT_ID in headers and not is_event_id(headers[EVENT_ID]):
        raise InvalidOption(
            f"header {EVENT_ID} {headers[EVENT_ID]!r:.220} is not an identity",
            remedy="give 1 to 200 printable ASCII characters, such as a UUID, or omit it: the message gets one",
        )
    return json.dumps(dict(headers))


def is_storable(text: str) -> bool:
    """Whether PostgreSQL can store a text: it accepts neither NUL characters nor lone surrogates."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def decoder_for(wanted: Any) -> Decoder:
    """The decoder for a type, one for each type. Raises TypeError for a type that cannot be decoded to."""
    try:
        return _decoder_for(wanted)
    except TypeError:  # the type is not hashable, or is no type: without the cache this raises the right error
        return _decoder_for.__wrapped__(wanted)


@lru_cache(maxsize=1000)
def _decoder_for(wanted: Any) -> Decoder:
    if wanted is bytes:
        return Decoder(lambda payload, content_type: payload, is_shareable=True)
    if wanted is Any or wanted is object:
        return Decoder(_decode_by_content_type, msgspec.json.Decoder())
    if is_pydantic(wanted):
        return Decoder(lambda payload, content_type: _decode_pydantic(wanted, payload), is_shareable=True)
    for unknown in _custom_types(msgspec.inspect.type_info(wanted), set()):
        if not is_pydantic(unknown):
            raise TypeError(f"{unknown!r} is not a type that payloads can be decoded to")
    typed = msgspec.json.Decoder(wanted, dec_hook=_from_plain)

    def decode(payload: bytes, content_type: str) -> Any:
        if wanted is str and not is_json(content_type):
            return payload.decode("utf-8", "surrogatepass")
        try:
            return typed.decode(payload)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            return msgspec.convert(_read_leniently(payload, error), wanted, str_keys=True, dec_hook=_from_plain)

    is_own = isinstance(wanted, type) and (hasattr(wanted, "__struct_fields__") or dataclasses.is_dataclass(wanted))
    return Decoder(decode, None if wanted is str else typed, is_shareable=is_own or wanted in (str, int, float, bool))


def _custom_types(info: Any, seen: set[int]) -> Iterator[Any]:
    """The types within a type that are not msgspec's own."""
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, tuple):
        for part in info:
            yield from _custom_types(part, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and id(info) not in seen:
        seen.add(id(info))
        for name in info.__struct_fields__:
            yield from _custom_types(getattr(info, name), seen)


def _from_plain(wanted: Any, value: Any) -> Any:
    return _decode_pydantic(wanted, _written(value))


def _decode_by_content_type(payload: bytes, content_type: str) -> Any:
    if is_json(content_type):
        try:
            return msgspec.json.decode(payload)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            return _read_leniently(payload, error)
    if content_type.startswith("text/"):
        return payload.decode("utf-8", "surrogatepass")
    return payload


def _decode_pydantic(model: Any, payload: bytes) -> Any:
    try:
        return model.model_validate_json(payload)
    except ValueError as error:
        if b"\\ud" not in payload.lower():
            raise
        return model.model_validate(_read_leniently(payload, error))


def _read_leniently(payload: bytes, error: Exception) -> Any:
    """Read JSON that contains lone surrogates. If it is not JSON, raise PayloadNotDecodable with the given error."""
    try:
        return json.loads(payload.decode("utf-8"), parse_constant=_refuse_number, parse_float=_finite)
    except ValueError:
        raise PayloadNotDecodable(f"the payload is not JSON: {error}") from error


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        _refuse_number(number)
    return value


def _refuse_number(number: str) -> NoReturn:
    raise ValueError(f"{number} is not a number of JSON")


def is_pydantic(kind: Any) -> bool:
    """Whether a class is a model of pydantic, without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and not dataclasses.is_dataclass(kind)
