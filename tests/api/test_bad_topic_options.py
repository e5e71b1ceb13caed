"""Bad options of topics are refused alike by Python and by SQL."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from postbus import Bus, InvalidOption
from postbus.options import as_timedelta
from support.naming import steady


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"colour": "red"}, "a topic has no option 'colour'"),
        ({"semantics": "LOG"}, "semantics 'LOG' is not known"),
        ({"ordered": "perhaps"}, "perhaps"),
        ({"max_attempts": 2.5}, "2.5"),
        ({"max_attempts": "many"}, "many"),
        ({"max_attempts": 0}, "max_attempts goes from 1 to 10000"),
        ({"max_attempts": 10**30}, "out of range"),
        ({"max_attempts": True}, "true"),
        ({"retry_factor": 0.5}, "retry_factor goes from 1 to 100"),
        ({"retry_factor": "NaN"}, "retry_factor goes from 1 to 100"),
        ({"retry_jitter": 2}, "retry_jitter goes from 0 to 1"),
        ({"max_payload_bytes": 0}, "max_payload_bytes goes from 1"),
        ({"max_payload_bytes": 1 << 40}, "out of range"),
        ({"notify": 5.5}, "5.5"),
        ({"lease": None}, "option 'lease' is null"),
        ({"ordered": None}, "option 'ordered' is null"),
    ],
    ids=steady,
)
async def test_bad_option_values_are_refused(
    bus: Bus, conn: Any, topic: str, options: dict[str, Any], why: str
) -> None:
    """The error names the option, in `create_topic` and in `set_topic`, and nothing is created or changed."""
    with pytest.raises(InvalidOption) as created:
        await bus.admin.create_topic(topic, **options)
    with pytest.raises(asyncpg.PostgresError) as in_sql:
        await conn.execute("select postbus.create_topic($1, $2)", topic, json.dumps(options))
    assert not await conn.fetchval("select exists (select from postbus.topics where name = $1)", topic)
    await bus.admin.create_topic(topic)
    before = await bus.admin.topic(topic)
    with pytest.raises(InvalidOption):
        await bus.admin.set_topic(topic, **options)

    assert why in str(created.value)
    assert created.value.code == getattr(in_sql.value, "sqlstate", None) == "PB402"
    assert created.value.remedy
    assert await bus.admin.topic(topic) == before


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lease": "0s"}, "lease goes from 1 second to 1 day"),
        ({"lease": timedelta(days=2)}, "lease goes from 1 second to 1 day"),
        ({"retry_initial": timedelta(seconds=-1)}, "retry_initial is not negative"),
        ({"retry_initial": "2h", "retry_max": "1h"}, "retry_max is not less than retry_initial"),
        ({"retry_initial": "2h"}, "retry_max is not less than retry_initial"),
        ({"retention": timedelta(seconds=-1)}, "retention is not negative"),
        ({"dedup_window": 0}, "dedup_window is positive"),
        ({"retention": timedelta(days=400_000)}, "durations go up to 1000 years"),
        ({"max_retention": timedelta(seconds=-1)}, "max_retention is not negative"),
        ({"lease": "soon"}, "lease 'soon' is not a duration"),
        ({"retention": True}, "retention True is not a duration"),
        ({"retention": float("nan")}, "retention nan is not a duration"),
        ({"retry_factor": float("inf")}, "option retry_factor has the value inf"),
        ({"ordered": object()}, "option ordered has the value <object"),
        ({"semantics": b"QUEUE"}, "option semantics has the value b'QUEUE'"),
    ],
    ids=steady,
)
async def test_bad_durations_and_combinations_are_refused(bus: Bus, topic: str, options: Any, why: str) -> None:
    """Durations are checked alone, and together with the default values of other options."""
    with pytest.raises(InvalidOption) as refused:
        await bus.admin.create_topic(topic, **options)

    assert why in str(refused.value)
    assert refused.value.remedy


async def test_options_are_stored_as_given(bus: Bus, topic: str) -> None:
    """Each option has a value other than its default here, and the topic shows it."""
    options: dict[str, Any] = {
        "ordered": True, "lease": "2 minutes", "max_attempts": 3, "retry_initial": timedelta(microseconds=1),
        "retry_factor": 3.5, "retry_max": 90, "retry_jitter": 0, "retention": "7d", "dedup_window": "1500 ms",
        "max_payload_bytes": 10, "notify": True,
    }  # fmt: skip
    await bus.admin.create_topic(topic, **options)

    stored = await bus.admin.topic(topic)

    assert {name: getattr(stored, name) for name in options} == {
        **options,
        "lease": timedelta(minutes=2),
        "retry_max": timedelta(seconds=90),
        "retention": timedelta(days=7),
        "dedup_window": timedelta(seconds=1.5),
    }


@pytest.mark.parametrize("options", ["[]", "null", '"text"', "5"])
async def test_options_in_sql_must_be_a_json_object(conn: Any, topic: str, options: str) -> None:
    """Anything else is refused with our code."""
    with pytest.raises(asyncpg.PostgresError, match="the options are not a JSON object") as refused:
        await conn.execute("select postbus.create_topic($1, $2)", topic, options)

    assert getattr(refused.value, "sqlstate", None) == "PB402"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("30s", 30),
        ("30", 30),
        (" 5 Minutes ", 300),
        ("1.5h", 5400),
        ("24h", 86400),
        ("7 days", 604800),
        ("250ms", 0.25),
        (30, 30),
        (0.5, 0.5),
        (timedelta(minutes=1), 60),
    ],
)
def test_durations_may_be_numbers_texts_or_timedeltas(given: Any, meant: float) -> None:
    """A number is in seconds; a text is a number and a unit."""
    assert as_timedelta(given) == timedelta(seconds=meant)


@pytest.mark.parametrize(
    "given",
    ["", "s", "-5s", "5 parsecs", "1h30m", "1e3s", "9" * 400, "9" * 20 + "d", None, True, [], float("nan"), 1e300],
)
def test_bad_durations_are_refused(given: Any) -> None:
    """The error has an example of a valid duration."""
    with pytest.raises(InvalidOption, match="wait .* is not a duration") as refused:
        as_timedelta(given, name="wait")

    assert '"30s"' in refused.value.remedy
