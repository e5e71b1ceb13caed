"""No parameter is silently dropped: each changes what a client sends, and the server reads what it accepts."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import msgspec
import pytest

from postbus import Bus, InvalidOption, PopOptions, PostbusError, PublishOptions, Start
from postbus.http_client import HttpBus
from postbus.server import shapes

SERVER = Path(__file__).parents[2] / "src" / "postbus" / "server"
_LATER = datetime(2100, 1, 1, tzinfo=UTC)
_POP: dict[str, dict[str, Any]] = {  # a value for each option, with what it needs beside it
    "group": {"group": "g"},
    "batch": {"batch": 7},
    "wait": {"wait": 0.1},
    "lease": {"lease": "7s"},
    "key": {"key": "k", "group": "g"},
    "namespace": {"namespace": "n", "group": "g", "topic": None},
    "task": {"task": "n", "group": "g", "topic": None},
    "start": {"start": Start.BEGINNING, "group": "g"},
    "mode": {"mode": "new", "group": "g"},
    "look_back": {"look_back": "1h", "mode": "new", "group": "g"},
    "auto_ack": {"auto_ack": True},
}
_NOT_SENT = {"keep", "member"}  # the first is done by the client; the second is refused
_PUBLISH: dict[str, Any] = {
    "key": "k",
    "headers": {"a": "b"},
    "priority": 9,
    "delay": 7,
    "deliver_at": _LATER,
    "dedup_key": "d",
    "correlation_id": "c",
    "content_type": "text/plain",
}
_VALUES: dict[str, Any] = {
    "namespace": "n", "task": "n", "last": True, "topic": "u", "name": "u", "group": "u", "after_id": 7, "limit": 7,
    "newest": True, "message_id": 7, "start": Start.BEGINNING, "on_failure": "pass", "stuck_after": 7,
}  # fmt: skip
_NEEDED = {"topic": "t", "name": "t", "group": "g", "message_id": 1}


class Recorder:
    """Records what is sent to a server, which answers it."""

    def __init__(self, http: HttpBus, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sent: list[tuple[str, str, bytes]] = []
        send = http._wire._client.send

        async def note(request: httpx.Request, **options: Any) -> httpx.Response:
            self._sent.append((request.method, str(request.url), request.content))
            return await send(request, **options)

        monkeypatch.setattr(http._wire._client, "send", note)

    async def sent(self, call: Callable[[], Awaitable[Any]]) -> list[tuple[str, str, bytes]]:
        self._sent.clear()
        with suppress(PostbusError):
            await call()
        return list(self._sent)


@pytest.fixture
def recorder(http: HttpBus, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(http, monkeypatch)


def _without(given: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the same call without one option: with a topic if it had a namespace."""
    left = {one: value for one, value in given.items() if one != name}
    return {**left, "topic": left.get("topic") or "t"}


@pytest.mark.parametrize("name", sorted(PopOptions.__annotations__.keys() - _NOT_SENT))
async def test_option_of_a_pop_reaches_the_server(http: HttpBus, recorder: Recorder, name: str) -> None:
    """Another value makes another request."""
    given = {"topic": "t", **_POP[name]}
    [with_it] = (await recorder.sent(lambda: http.pop(**given)._pop()))[-1:]
    [without] = (await recorder.sent(lambda: http.pop(**_without(given, name))._pop()))[-1:]
    assert with_it != without


async def test_look_back_needs_its_mode(http: HttpBus) -> None:
    """It is refused rather than dropped, as with a bus on the database."""
    with pytest.raises(PostbusError, match="look_back is for"):
        await http.pop("t", group="g", look_back="1h")


@pytest.mark.parametrize("name", sorted(PublishOptions.__annotations__))
async def test_option_of_a_message_reaches_the_server(http: HttpBus, recorder: Recorder, name: str) -> None:
    """This holds for `send` and for publishing in a transaction."""
    value = {name: _PUBLISH[name]}

    async def publish(**options: Any) -> None:
        async with http.transaction() as tx:
            await http.publish(tx, "t", b"x", **options)

    for call in (lambda **options: http.send("t", b"x", **options), publish):
        [sent] = await recorder.sent(lambda call=call: call(**value))  # type: ignore[misc]
        body = msgspec.json.decode(sent[2])
        messages = body if isinstance(body, list) else body["push"][0]["messages"]
        assert messages[0][name] is not None


def _methods() -> list[tuple[str, str, str]]:
    found = []
    for part, kind in (("", HttpBus), ("admin", type(HttpBus("http://nowhere").admin))):
        for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
            if not name.startswith("_") and name not in ("send", "send_many", "publish", "publish_many", "close"):
                found += [(part, name, one) for one in inspect.signature(method).parameters if one != "self"]
    return found


@pytest.mark.parametrize(("part", "method", "name"), _methods())
async def test_parameter_of_a_call_reaches_the_server(
    http: HttpBus, recorder: Recorder, part: str, method: str, name: str
) -> None:
    """Another value makes another request."""
    call = getattr(getattr(http, part) if part else http, method)
    parameters = inspect.signature(call).parameters
    given = {one: _NEEDED[one] for one, it in parameters.items() if it.default is it.empty}
    if method == "heartbeat":
        given["topic"] = "t"
    changed = {**given, name: _VALUES[name]}
    if name in ("namespace", "task"):
        changed["topic"] = None
    assert await recorder.sent(lambda: call(**given)) != await recorder.sent(lambda: call(**changed))


def _reads() -> set[str]:
    """Return the attributes that the server reads anywhere."""
    trees = [ast.parse(path.read_text()) for path in SERVER.glob("*.py") if path.name != "shapes.py"]
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


# These are passed on as a whole; test_admin_routes, test_health and test_webhooks give each of their fields.
_HANDED_ON = {"TopicSettings", "HealthLimitsBody", "WebhookSettings"}


def _bodies() -> list[type[msgspec.Struct]]:
    found = [one for one in vars(shapes).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    return [one for one in found if one.__name__ not in _HANDED_ON]


@pytest.mark.parametrize("body", _bodies(), ids=lambda one: one.__name__)
def test_server_reads_each_field_that_it_accepts(body: type[msgspec.Struct]) -> None:
    """A field that no code reads would be accepted and dropped."""
    assert {one.name for one in msgspec.structs.fields(body)} <= _reads()


async def test_every_query_parameter_is_read() -> None:
    """A parameter that the route's function does not use would be accepted and dropped."""
    unused = []
    for path in SERVER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef) and any(
                "route(" in ast.unparse(one) for one in node.decorator_list
            ):
                used = {one.id for part in node.body for one in ast.walk(part) if isinstance(one, ast.Name)}
                unused += [f"{node.name}: {one.arg}" for one in node.args.args if one.arg not in used]
    assert unused == []


async def test_every_option_of_a_command_is_read() -> None:
    """This is the same check for the command line."""
    unused = []
    for path in (SERVER.parent / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                continue
            is_command = any(ast.unparse(one).startswith("command(") for one in node.decorator_list)
            if is_command:
                used = {one.id for part in node.body for one in ast.walk(part) if isinstance(one, ast.Name)}
                arguments = [*node.args.args, *node.args.kwonlyargs, *filter(None, [node.args.kwarg])]
                unused += [f"{path.name}: {node.name}: {one.arg}" for one in arguments if one.arg not in used]
    assert unused == []


def test_bus_and_client_take_the_same_options(bus: Bus) -> None:
    """The client sends or refuses every option of the bus."""
    for name in ("send", "send_many", "pop", "heartbeat"):
        own = get_type_hints(getattr(HttpBus, name)).keys()
        assert get_type_hints(getattr(Bus, name)).keys() - own <= {"member"}


def test_token_that_no_server_printed_is_refused() -> None:
    """A placeholder that was pasted with its ellipsis is named before any request."""
    with pytest.raises(InvalidOption, match="the token has characters"):
        HttpBus("http://nowhere", token="pbt_…")
