"""The API follows its description: every route, with input that fits it and with input that does not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from http_api.serving import client, new_token, serving
from postbus import Bus
from postbus.results.access import TokenRole

# The server draws jitter while requests are generated in another thread.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
_CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    unsupported_method,
]  # fmt: skip
_SETTINGS = hypothesis.settings(
    max_examples=4, deadline=None, database=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


_FEW = hypothesis.settings(_SETTINGS, max_examples=1)


def call_all(url: str, headers: dict[str, str], settings: hypothesis.settings = _SETTINGS) -> set[int]:
    """Call every operation with generated requests. Returns the statuses of the answers."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    statuses: set[int] = set()
    found: Any
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in GenerationMode:

            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            @settings
            def test(case: Any) -> None:
                if isinstance(case.body, dict) and "wait" in case.body:
                    case.body["wait"] = 0  # nobody has to wait for a message that does not come
                answer = case.call(base_url=url, headers=headers)
                statuses.add(answer.status_code)
                case.validate_response(answer, checks=_CHECKS)

            with suppress(Unsatisfiable):  # a request without any input cannot be wrong
                test()
    return statuses


@pytest.mark.timeout(300)
async def test_every_route_follows_its_description(bus: Bus) -> None:
    """With all roles, no answer is an internal error, or one that the description lacks."""
    await bus.admin.create_topic("orders", semantics="PUB_SUB")
    async with serving(bus, auth=True) as url:
        token = await new_token(bus, "producer", "consumer", "observer", "admin")
        statuses = await asyncio.to_thread(call_all, url, {"authorization": f"Bearer {token}"})

    assert {200, 201, 400, 404} <= statuses
    assert 500 not in statuses


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("roles", "limits"),
    [
        (["operator"], {}),
        (["producer", "consumer", "observer", "operator", "admin"], {"groups": ["audit"]}),
        (["observer"], {"payloads": False}),
    ],
    ids=["an operator", "a token for one group", "an observer without payloads"],
)
async def test_every_route_follows_its_description_for_a_limited_token(
    bus: Bus, roles: list[TokenRole], limits: dict[str, Any]
) -> None:
    """Refusals and omissions are described too."""
    await bus.admin.create_topic("orders", semantics="PUB_SUB")
    await bus.admin.subscribe_group("audit", "orders")
    await bus.send("orders", 1, key="k", headers={"event-id": "e"})
    async with bus.pop("orders", group="audit", wait=20) as popped:
        await popped.dead_letter("no")
    async with serving(bus, auth=True) as url:
        made = await bus.admin.create_token("test", roles, **limits)
        headers = {"authorization": f"Bearer {made.token}"}
        statuses = await asyncio.to_thread(call_all, url, headers, _FEW)

    assert {200, 403} <= statuses
    assert 500 not in statuses


@pytest.mark.timeout(300)
async def test_every_route_follows_its_description_for_strangers(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token, everything that needs one is refused before anything else is checked."""
    monkeypatch.setattr("postbus.server.wrong_tokens._AT_ONCE", 1e9)  # generated headers are no tokens
    async with serving(bus, auth=True) as url:
        statuses = await asyncio.to_thread(call_all, url, {})

    assert statuses <= {200, 401}  # the health routes are open


async def test_description_is_openapi_3_1_with_fitting_examples(bus: Bus) -> None:
    """Each body has an example, which fits the schema of the body."""
    async with serving(bus) as url, client(url) as http:
        described = (await http.get("/openapi.json")).json()

    assert described["openapi"].startswith("3.1.")
    bodies = 0
    for path in described["paths"].values():
        for operation in path.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                for example in examples_of(media["schema"], described):
                    jsonschema_rs.validate({**media["schema"], "components": described["components"]}, example)
                    bodies += 1
    assert bodies >= 15


async def test_every_parameter_is_described(bus: Bus) -> None:
    """Names such as `last` and `force` do not explain themselves."""
    async with serving(bus) as url, client(url) as http:
        described = (await http.get("/openapi.json")).json()

    bare = [
        (operation["operationId"], parameter["name"])
        for path in described["paths"].values()
        for operation in path.values()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert bare == []


def examples_of(schema: dict[str, Any], described: dict[str, Any]) -> list[Any]:
    chosen = schema["oneOf"][0] if "oneOf" in schema else schema
    component = described["components"]["schemas"][chosen["$ref"].rpartition("/")[2]]
    examples: list[Any] = component["examples"]
    assert examples[0]
    return examples
