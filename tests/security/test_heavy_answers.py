"""Heavy answers: pages end by bytes, and the cost of a list depends on what the caller may see."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from postbus.bus import Bus
from postbus.embedded import EmbeddedPostgres
from postbus.http_client import HttpBus
from security.served import Served, database, served

pytestmark = pytest.mark.attack("heavy answers")
_MIB = 1 << 20
_LARGE = 40  # messages of 1 MB
_DEAD = 20_000
_TOPICS = 100
_ENTRIES = 1000  # entries of the audit log, of 47 KB each
_QUICK = 1.0  # seconds


@pytest.fixture(scope="module")
def target(server: EmbeddedPostgres) -> Iterator[Served]:
    """Set up large messages in three topics, 20,000 dead letters, and 100 hidden topics with a group each."""
    with database(server) as dsn, served(dsn, "--auth") as running:
        running.tokens["all"] = running.new_token("producer", "consumer", "observer", "admin")
        running.tokens["blind"] = running.new_token("observer", "admin", topics=("nothing.*",))
        running.tokens["one"] = running.new_token("observer", "admin", topics=("seen",))
        running.use_database(fill)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(
                "insert into postbus.dead_letter "
                "(id, topic_id, reason, attempts, priority, published_at, content_type, payload) "
                "select 10000000 + n, postbus.topic_id('hidden.0'), 'bad', 1, 4, now(), 'text/plain', 'x' "
                "from generate_series(1, %s) n",
                (_DEAD,),
            )
            conn.execute(
                "select postbus.note_action('topic.set', 'large.audit', "
                "given => value, before => value, after => value) "
                "from (select jsonb_build_object('x', repeat('x', 16000)) as value), generate_series(1, %s)",
                (_ENTRIES,),
            )
            conn.execute("analyze")
        yield running


async def fill(bus: Bus) -> None:
    large = "x" * 1_000_000
    await bus.admin.create_topic("large.log", semantics="PUB_SUB")
    await bus.admin.create_topic("large.queue")
    await bus.admin.create_topic("large.dead")
    await bus.admin.create_topic("seen", semantics="PUB_SUB")
    for _ in range(_LARGE):
        for name in ("large.log", "large.queue", "large.dead"):
            await bus.send(name, large)
    while popped := await bus.pop("large.dead", batch=10):
        await popped.dead_letter("too large", error="e" * 1000)
    store = await bus.connect()
    for number in range(_TOPICS):
        name = f"hidden.{number}"
        await bus.admin.create_topic(name, semantics="PUB_SUB" if number else "QUEUE")
        if number:
            await bus.admin.subscribe_group("g", name)
    async with store.connection() as conn:
        await conn.execute(
            "select postbus.create_webhook('w' || n, 'hidden.' || n, 'http://127.0.0.1:1/', $1, 'g', enabled => false) "
            "from generate_series(1, 99) n",
            "whsec_" + base64.b64encode(b"0" * 24).decode(),
        )
    await bus.admin.subscribe_group("g", "seen")
    await bus.admin.create_webhook("seen", "seen", "http://127.0.0.1:1/", group="g", enabled=False)


PAGES = {
    "a queue": "/v1/topics/large.queue/messages?limit=1000",
    "the newest of a queue": "/v1/topics/large.queue/messages?limit=1000&newest=true",
    "a log": "/v1/topics/large.log/messages?limit=1000",
    "the newest of a log": "/v1/topics/large.log/messages?limit=1000&newest=true",
    "the dead letters of a topic": "/v1/topics/large.dead/dead-letters?limit=1000",
    "all dead letters": "/v1/dead-letters?limit=1000",
}


@pytest.mark.parametrize("page", PAGES)
def test_page_ends_by_bytes(target: Served, page: str) -> None:
    """The server's memory stays small, however many messages are requested."""
    with target.client(target.tokens["all"]) as http:
        before = target.most_memory()
        answer = http.get(PAGES[page])
        assert len(answer.content) < 9 * _MIB
        assert target.most_memory() - before < 60 * _MIB
        told = answer.json()
    assert told["next"]
    assert 5 <= len(told.get("messages") or told["dead_letters"]) <= 8


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("limit", [7, 1000])
def test_cursors_lead_through_everything(target: Served, page: str, limit: int) -> None:
    """Each message comes once, whether pages end by number or by bytes."""
    path = PAGES[page].replace("limit=1000", f"limit={limit}")
    found: list[int] = []
    cursor: str | None = None
    with target.client(target.tokens["all"]) as http:
        for _ in range(20):
            told = http.get(f"{path}&cursor={cursor}" if cursor else path).json()
            rows = told.get("messages") or told.get("dead_letters")
            ids = [int(one["id"]) for one in rows]
            assert ids == sorted(ids)
            found += reversed(ids) if "newest" in path else ids
            cursor = told["next"]
            if cursor is None or len(found) >= _LARGE:
                break
    expected = sorted(found, reverse="newest" in path)
    assert found == expected
    assert len(set(found)) == len(found)
    if page != "all dead letters":
        assert len(found) == _LARGE
        assert cursor is None


def test_audit_page_ends_by_bytes(target: Served) -> None:
    """A page of 1000 large entries stays small, for a token of one topic too, and cursors lead through all of them."""
    found: list[int] = []
    cursor: str | None = None
    with target.client(target.new_token("admin", topics=("large.audit",))) as http:
        before = target.most_memory()
        while len(found) < _ENTRIES:
            answer = http.get("/v1/audit", params={"limit": 1000} | ({"cursor": cursor} if cursor else {}))
            assert len(answer.content) < 9 * _MIB
            told = answer.json()
            assert 100 <= len(told["entries"]) <= 200 or told["next"] is None
            found += [int(one["id"]) for one in told["entries"]]
            cursor = told["next"]
        assert target.most_memory() - before < 60 * _MIB
    assert cursor is None
    assert found == sorted(set(found), reverse=True)
    assert len(found) == _ENTRIES


def test_large_audit_log_is_read_page_by_page(target: Served) -> None:
    """The command and a program get as many entries as they ask for, in either order."""

    async def look(bus: Bus) -> list[list[int]]:
        return [
            [one.id for one in await bus.admin.audit(topic="large.audit", limit=limit, newest=newest)]
            for limit in (_ENTRIES - 1, 2 * _ENTRIES)
            for newest in (True, False)
        ]

    newest, oldest, *both = target.use_database(look)
    assert [len(one) for one in both] == [_ENTRIES, _ENTRIES]
    assert both[0] == both[1][::-1] == sorted(both[1], reverse=True)
    assert newest == both[0][:-1]
    assert oldest == both[1][:-1]


def test_client_follows_cursors(target: Served) -> None:
    """A program gets the number of messages it asks for, in several pages."""

    async def look(_: Bus) -> list[list[dict[str, Any]]]:
        async with HttpBus(target.url, token=target.tokens["all"]) as http:
            return [
                await http.admin.messages("large.queue", limit=20),
                await http.admin.messages("large.queue", limit=20, newest=True),
                await http.admin.dead_letters("large.dead", limit=20),
                await http.admin.topics(),
            ]

    *pages, topics = target.use_database(look)
    assert [len(one) for one in pages] == [20, 20, 20]
    ids = [[int(row["id"]) for row in one] for one in pages]
    assert all(one == sorted(one) for one in ids)
    assert ids[0][-1] <= ids[1][0]
    assert len(topics) >= _TOPICS


@pytest.mark.parametrize("topic", ["large.queue", "large.log"])
def test_stream_of_large_messages_is_read_in_batches(target: Served, topic: str) -> None:
    """A client that continues gets all messages, and the server has few of them in memory."""
    before = target.most_memory()
    with (
        target.client(target.tokens["all"]) as http,
        http.stream("GET", f"/v1/topics/{topic}/follow", headers={"last-event-id": "0.0"}) as answer,
    ):
        events = 0
        for line in answer.iter_lines():
            events += line.startswith("event:")
            if events == _LARGE - 1:
                break
    assert target.most_memory() - before < 80 * _MIB


@pytest.mark.parametrize(
    "cursor",
    ["x", "!", "W10", "WyJhIl0", "WzEsMl0", "WzEsMiwzXQ", "W251bGxd", "Wy0xXQ", "WzFlOTld", "W3siYSI6MX1d",
     "WzkyMjMzNzIwMzY4NTQ3NzU4MDhd", "WyJcdTAwMDAiXQ", "WzEsIlx1MDAwMCIsIlx1MDAwMCJd", "' or 1=1 --"],
)  # fmt: skip
def test_forged_cursor_is_refused(target: Served, cursor: str) -> None:
    """It is refused or leads to a page, and never causes an internal error."""
    with target.client(target.tokens["all"]) as http:
        for path in (*PAGES.values(), "/v1/topics?", "/v1/groups?", "/v1/catch-ups?", "/v1/webhooks?", "/v1/audit?"):
            told = http.get(httpx.URL(target.url + path).copy_merge_params({"cursor": cursor}))
            assert told.status_code in (200, 400), told.text


def test_cursor_gives_no_rights(target: Served) -> None:
    """A cursor of another token is a position, not a permission."""
    with target.client(target.tokens["all"]) as http:
        cursors = {path: http.get(path, params={"limit": 1}).json()["next"] for path in LISTS[:-1]}
    with target.client(target.tokens["one"]) as http:
        for path, cursor in cursors.items():
            if cursor:
                assert "hidden" not in http.get(path, params={"cursor": cursor}).text


LISTS = ("/v1/topics", "/v1/groups", "/v1/dead-letters", "/v1/catch-ups", "/v1/webhooks", "/v1/health")


def seconds_of(http: httpx.Client, path: str, **params: Any) -> tuple[float, httpx.Response]:
    """Return the best of three times, and the answer."""
    best = float("inf")
    for _ in range(3):
        began = time.monotonic()
        answer = http.get(path, params=params)
        best = min(best, time.monotonic() - began)
        assert answer.status_code == 200, answer.text
    return best, answer


@pytest.mark.parametrize("limit", [1, 100, 1000])
def test_hidden_dead_letters_cost_nothing(target: Served, limit: int) -> None:
    """20,000 of them do not slow a page of any size."""
    with target.client(target.tokens["blind"]) as http:
        seconds, answer = seconds_of(http, "/v1/dead-letters", limit=limit)
    assert answer.json() == {"next": None, "dead_letters": []}
    assert seconds < _QUICK / 4


@pytest.mark.parametrize("path", LISTS[:-1])
def test_hidden_rows_are_filtered_by_the_database(target: Served, path: str) -> None:
    """The list of one topic is complete, and quicker than that of all."""
    with target.client(target.tokens["all"]) as http:
        seconds_of_all, everything = seconds_of(http, path)
    with target.client(target.tokens["one"]) as http:
        seconds, answer = seconds_of(http, path)
    assert "hidden" not in answer.text
    if "seen" in everything.text:
        assert "seen" in answer.text
    assert seconds < max(0.25, seconds_of_all / 2), (seconds, seconds_of_all)


def test_messages_of_other_topics_cost_nothing(target: Served) -> None:
    """A page of a small topic does not scan a large one."""
    with psycopg.connect(target.dsn, autocommit=True) as conn:
        conn.execute("select postbus.publish_many('busy', array_agg(n::text::bytea)) from generate_series(1, 20000) n")
        conn.execute("select postbus.publish('calm', 'x'::bytea)")
        conn.execute("analyze")
    with target.client(target.tokens["all"]) as http:
        seconds, answer = seconds_of(http, "/v1/topics/calm/messages")
        assert len(answer.json()["messages"]) == 1
        assert seconds < _QUICK / 4
    assert "Seq Scan on queued" not in plan_of_a_page(target)


def plan_of_a_page(target: Served) -> str:
    with psycopg.connect(target.dsn, autocommit=True) as conn:
        rows = conn.execute(
            "explain select id from postbus.messages where topic_id = postbus.topic_id('calm') order by id limit 10"
        ).fetchall()
    return "\n".join(row[0] for row in rows)


def test_concurrent_pages_stay_small(target: Served) -> None:
    """Each of 30 pages is bounded, and so is their sum."""
    before = target.memory()
    peak = before
    with target.client(target.tokens["all"]) as http:
        threads = [threading.Thread(target=http.get, args=(PAGES["a log"],)) for _ in range(30)]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            peak = max(peak, target.memory())
            time.sleep(0.02)
    assert peak - before < 30 * 30 * _MIB
