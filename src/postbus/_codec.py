"""Payloads to bytes and back.

JSON is written and read by msgspec. The standard library steps in for what msgspec refuses though JSON
can express it: lone surrogates, which travel as escapes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from postbus.errors import InvalidOption, PayloadNotDecodable, PayloadNotSerializable, PayloadTooDeep

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"

MAX_DEPTH = 100

Decoder = Callable[[bytes, str], Any]

_NOT_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\[\]{}"]+', re.DOTALL)


def encode(payload: Any) -> tuple[bytes, str]:
    """The bytes of a payload, and their content type."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), BYTES
    if isinstance(payload, str):
        return payload.encode("utf-8", "surrogatepass"), TEXT
    if _is_pydantic(type(payload)):
        payload = payload.model_dump(mode="json")
    encoded = _encode_json(payload)
    if encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH:
        _check_depth(encoded)
    return encoded, JSON


def _encode_json(payload: Any) -> bytes:
    try:
        encoded = msgspec.json.encode(payload)
        if b"null" in encoded:  # which is how msgspec writes NaN and infinity
            _refuse_nan(msgspec.to_builtins(payload))
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(payload)
        _refuse_nan(plain)
        return json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    except RecursionError:
        raise _too_deep() from None
    except (TypeError, ValueError, OverflowError) as error:
        raise PayloadNotSerializable(
            f"the payload cannot be written as JSON: {error}",
            remedy="publish dicts, lists, dataclasses, msgspec structs, pydantic models, str or bytes",
        ) from error
    return encoded


def _refuse_nan(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadNotSerializable(
                f"the payload holds {value}, which JSON cannot express", remedy="publish null or a string instead"
            )
    elif isinstance(value, dict):
        for item in value.values():
            _refuse_nan(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_nan(item)


def _check_depth(encoded: bytes) -> None:
    depth = 0
    for bracket in _NOT_BRACKETS.sub(b"", encoded):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise _too_deep()


def _too_deep() -> PayloadTooDeep:
    return PayloadTooDeep(f"the payload is nested deeper than {MAX_DEPTH} levels", remedy="flatten it")


def encode_headers(headers: Mapping[str, str] | None) -> str | None:
    """Headers as a JSON object of strings."""
    if headers is None:
        return None
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidOption(f"header {name!r} is not a pair of strings", remedy="convert it to str")
        if "\0" in name or "\0" in value:
            raise InvalidOption(f"header {name!r} holds a NUL character", remedy="put it into the payload")
    return json.dumps(dict(headers))


def decoder_for(wanted: Any) -> Decoder:
    """What turns stored bytes into the type a handler asks for."""
    if wanted is bytes:
        return lambda payload, content_type: payload
    if wanted is Any:
        return _decode_by_content_type
    if _is_pydantic(wanted):
        return _pydantic_decoder(wanted)
    try:
        typed = msgspec.json.Decoder(wanted)
    except TypeError as error:
        raise TypeError(f"{wanted!r} is not a type that payloads can be decoded to: {error}") from error

    def decode(payload: bytes, content_type: str) -> Any:
        if wanted is str and not _is_json(content_type):
            return payload.decode("utf-8", "surrogatepass")
        try:
            return typed.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _convert_leniently(payload, wanted, error)

    return decode


def _decode_by_content_type(payload: bytes, content_type: str) -> Any:
    if _is_json(content_type):
        try:
            return msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _convert_leniently(payload, Any, error)
    if content_type.startswith("text/"):
        return payload.decode("utf-8", "surrogatepass")
    return payload


def _convert_leniently(payload: bytes, wanted: Any, error: Exception) -> Any:
    """Decode what msgspec refuses: lone surrogates, and numbers beyond its range."""
    if isinstance(error, msgspec.ValidationError):
        raise PayloadNotDecodable(str(error)) from error
    try:
        return msgspec.convert(json.loads(payload), wanted)
    except (ValueError, RecursionError):
        raise PayloadNotDecodable(f"the payload is not JSON: {error}") from error


def _pydantic_decoder(model: Any) -> Decoder:
    def decode(payload: bytes, content_type: str) -> Any:
        try:
            return model.model_validate_json(payload)
        except ValueError as error:
            raise PayloadNotDecodable(str(error)) from error

    return decode


def _is_json(content_type: str) -> bool:
    return content_type.startswith(JSON) or content_type.partition(";")[0].endswith("+json")


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and not dataclasses.is_dataclass(kind)
