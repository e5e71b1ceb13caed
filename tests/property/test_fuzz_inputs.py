"""Inputs to SQL functions: names, options, cursors, ids and times are accepted, or refused with our own errors."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postbus import CatchUp, InvalidOption
from postbus._content.names import is_name
from postbus.options import as_json
from property.settings import examples
from property.world import World
from support.log_sql import create_topic, cursor_of, publish_many, read, subscribe

_MALFORMED = ("22", "PB")
"""Codes of what cannot even be read, as PostgreSQL says it, and of what we refuse."""

_storable = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40)


@examples(150)
@given(data=st.data())
def test_bad_cursor_is_refused(world: World, data: st.DataObject) -> None:
    """It may be any text, or a changed cursor; the connection can be used afterwards."""
    topic, cursor = _log(world)
    text = data.draw(_storable | _changed(cursor))
    refused = world.refusal("select * from postbus.read_log($1, '{0}', $2)", topic, text)
    assert refused is None or refused[:2] in _MALFORMED, refused
    advance = """
        select postbus.advance(array[l.subscription_id], array[l.lane], array[l.token], array[c.number], array[$1],
                               '{null}', '{null}', '{0}')
          from postbus.lane l join postbus.current_cursor c on c.subscription_id = l.subscription_id and c.lane = l.lane
         where l.subscription_id = $2 and l.lane = 0
    """
    refused = world.refusal(advance, text, world.value("select max(id) from postbus.subscription"))
    assert refused is None or refused[:2] in _MALFORMED, refused
    assert world.value("select messages from postbus.group_lag((select max(id) from postbus.subscription))") >= 0
    assert world.run(read(world.conn, cursor, topic=topic)).messages == ["a", "b", "c"]


_bigints = (
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 200_000) | st.sampled_from([2**63 - 1, 2**53, 2**43, -(2**63)])
)


@examples(60)
@given(id=_bigints)
def test_any_number_may_be_given_as_a_message_id(world: World, id: int) -> None:
    """A seek or a lookup finds the message, or says that there is none."""
    topic, _ = _log(world)
    before = {row["id"] for row in world.fetch("select id from postbus.log where topic = $1", topic)}
    last = world.value("select last_value from postbus.segment_number")
    if not 0 <= id <= (last + 1) * 1024:
        assert world.refusal("select postbus.seek($1, 'g', 'FROM_MESSAGE_ID', start_id => $2)", topic, id) == "PB402"
    else:
        count = world.value("select postbus.seek($1, 'g', 'FROM_MESSAGE_ID', start_id => $2)", topic, id)
        assert count == len([one for one in before if one >= id])
        group = world.value("select subscription_id from postbus.groups where topic = $1", topic)
        assert len(world.run(read(world.conn, world.run(cursor_of(world.conn, group)), topic=topic)).ids) == count
    for function in ("deliveries_of", "message_state"):
        refused = world.refusal(f"select * from postbus.{function}($1, $2)", topic, id)
        assert refused == (None if id in before else "PB405")


_times = st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat) | st.sampled_from(
    ["infinity", "-infinity", "4713-01-01 BC", "294276-12-31", "epoch"]
)


@examples(60)
@given(at=_times)
def test_any_time_may_be_sought(world: World, at: str) -> None:
    """The reported count is what the group reads afterwards."""
    topic, _ = _log(world)
    sql = "select postbus.seek($1, 'g', 'FROM_TIMESTAMP', start_at => $2::text::timestamptz)"
    count = world.value(sql, topic, at)
    group = world.value("select subscription_id from postbus.groups where topic = $1", topic)
    assert len(world.run(read(world.conn, world.run(cursor_of(world.conn, group)), topic=topic)).ids) == count


_likely = st.text(st.sampled_from("aZ09_.:/- \n*ä$'\"%\\"), max_size=8)
_good = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,20}", fullmatch=True)
_long = st.integers(198, 203).map(lambda n: "x" * n)


@examples(80)
@given(topic=_good | _likely | _long, group=_good | _likely | _long)
def test_names_work_from_end_to_end_or_are_refused_alike(world: World, topic: str, group: str) -> None:
    """Python and SQL agree, for a topic and for a group of it."""
    options = '{"semantics": "PUB_SUB", "lanes": 1}'
    if not is_name(topic):
        assert world.refusal("select postbus.create_topic($1, $2)", topic, options) == "PB401"
        assert world.refusal("select postbus.publish($1, 'a'::text)", topic) == "PB401"
        return
    world.value("select postbus.create_topic($1, $2)", topic, options)
    try:
        if not is_name(group):
            assert world.refusal("select postbus.subscribe($1, $2)", topic, group) == "PB401"
            return
        id = world.run(subscribe(world.conn, group, topic=topic))
        world.run(publish_many(world.conn, "a", topic=topic))
        assert world.run(read(world.conn, world.run(cursor_of(world.conn, id)), topic=topic)).messages == ["a"]
        rows = world.fetch("select topic, group_name from postbus.deliveries where topic = $1", topic)
        assert [tuple(row) for row in rows] == [(topic, group)]
    finally:
        world.value("select postbus.delete_topic($1, force => true)", topic)


_durations = st.sampled_from(
    ["0", "1s", "90 seconds", "1 day", "7000 years", "170000 years", "-1s", "infinity", "P1D", "soon", "999999999 days"]
)
_values = (
    st.none() | st.booleans() | st.integers(-3, 2000) | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
    | _durations
    | st.sampled_from(["QUEUE", "PUB_SUB", "own", "shared", "REFERENCE_COUNTING", "OFFSET_WATERMARK", "", "5"])
    | st.lists(st.none(), max_size=1) | st.dictionaries(st.text(max_size=1), st.none(), max_size=1)
)  # fmt: skip
_TOPIC_OPTIONS = [
    "semantics", "tracking", "lanes", "storage", "segment_size", "zero_subscription_retention", "max_retention",
    "dead_retention",
    "block_writes_on_zero_subscriptions", "zombie_time", "heartbeat_interval", "heartbeat_timeout", "ordered", "lease",
    "max_attempts", "retry_initial", "retry_factor", "retry_max", "retry_jitter", "retention", "dedup_window",
    "max_payload_bytes", "notify", "colour", "id", "name", "storage_id",
]  # fmt: skip
_DURATIONS = [name for name in _TOPIC_OPTIONS if name.endswith(("retention", "time", "interval", "timeout", "window"))]
_options = st.dictionaries(st.sampled_from(_TOPIC_OPTIONS), _values, max_size=3) | st.dictionaries(
    st.sampled_from([*_DURATIONS, "lease", "retry_initial", "retry_max"]), _durations, min_size=1, max_size=3
)


@examples(150)
@given(options=_options, is_log=st.booleans())
def test_topic_options_are_refused_or_work(world: World, options: dict[str, Any], is_log: bool) -> None:
    """A topic that could be created can be used and swept, and Python agrees about what it accepts."""
    topic = world.new_name("options")
    given = {"semantics": "PUB_SUB", **options} if is_log else options
    text = json.dumps(given)
    if "Infinity" in text:
        return
    refused = world.refusal("select postbus.create_topic($1, $2)", topic, text)
    assert refused in (None, "PB402"), refused
    with suppress(InvalidOption):
        world.refusal("select postbus.create_topic($1, $2)", f"{topic}-python", json.dumps(as_json(given)))
    if refused is None:
        _use(world, topic)


def _use(world: World, topic: str) -> None:
    """Publish, consume and fail once, sweep, and delete."""
    [row] = world.fetch("select semantics, storage_id from postbus.topic where name = $1", topic)
    is_log = row["semantics"] == "PUB_SUB"
    if is_log:
        world.run(subscribe(world.conn, topic=topic))
    world.value("select postbus.publish($1, 'a'::text, key => 'k', dedup_key => 'd')", topic)
    world.value("select postbus.publish($1, 'a'::text, key => 'k', dedup_key => 'd')", topic)
    if is_log:
        world.fetch("select * from postbus.groups where topic = $1", topic)
        world.fetch("select * from postbus.sweep_log($1)", row["storage_id"])
    else:
        [claimed] = world.fetch("select * from postbus.claim($1, 'm', 1)", topic)
        world.fetch("select * from postbus.retry($1, $2)", claimed["token"], claimed["ids"])
        world.fetch("select * from postbus.return_expired()")
    world.fetch("select * from postbus.sweep()")
    world.fetch("select * from postbus.topics where name = $1", topic)
    world.value("select postbus.delete_topic($1, force => true)", topic)


_CATCH_UP = ["preset", "batch_size", "max_messages", "max_rate", "target_latency", "beside_from", "colour"]
_bounds = _values | st.sampled_from(["default", "conservative", "5", "00:00:01", "5 ms", "1.5", "NaN", "Infinity"])


@examples(150)
@given(options=st.dictionaries(st.sampled_from(_CATCH_UP), _bounds, max_size=3))
def test_catch_up_options_are_refused_or_work(world: World, options: dict[str, Any]) -> None:
    """Processes of a group can read what SQL accepts, and SQL accepts what Python does."""
    text = json.dumps(options)
    if "Infinity" not in text.replace('"Infinity"', ""):
        refused = world.refusal("select postbus.catch_up_options($1::text::jsonb)", text)
        assert refused in (None, "PB402"), refused
        if refused is None:
            told = world.value("select postbus.catch_up_options($1::text::jsonb)::text", text)
            assert isinstance(CatchUp.from_json(told), CatchUp)
    with suppress(InvalidOption):
        named = {name: value for name, value in options.items() if name not in ("preset", "colour")}
        bounds = CatchUp(**named)
        assert (
            CatchUp.from_json(world.value("select postbus.catch_up_options($1::text::jsonb)::text", bounds.as_json()))
            == bounds
        )


def _log(world: World) -> tuple[str, str]:
    """Provide a topic with three messages, the same for all examples of a test.

    Returns it with a group's cursor before them.
    """
    if world.value("select count(*) from postbus.topic where name = 'fuzz'") == 0:
        world.run(create_topic(world.conn, "fuzz"))
        world.run(subscribe(world.conn, topic="fuzz"))
        world.run(publish_many(world.conn, *"abc", topic="fuzz"))
    sql = "select cursor::text from postbus.cursor order by subscription_id, number limit 1"
    return "fuzz", str(world.value(sql))


def _changed(text: str) -> st.SearchStrategy[str]:
    """Return the text with a part of it replaced."""
    return st.builds(
        lambda at, length, part: text[:at] + part + text[at + length :],
        st.integers(0, len(text)),
        st.integers(0, 4),
        st.text(st.sampled_from('0123456789(),":-x '), max_size=4),
    )
