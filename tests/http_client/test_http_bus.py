"""HttpBus: the calls of a bus, through a server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from http_api.serving import new_token, serving
from http_client.breaking import BreakingProxy
from postbus import (
    Bus,
    CommitUnknown,
    DatabaseUnavailable,
    Heartbeat,
    InvalidInput,
    InvalidOption,
    LeaseLost,
    Outgoing,
    PayloadTooLarge,
    PostbusError,
    Start,
    TopicNotFound,
)
from postbus.http_client import HttpBus
from postbus.http_client.send import SendBudget
from support.eventually import eventually
from support.grouping import create_log
from support.pulling import leased, lose, send_numbers, states_of
from support.queue_sql import count_of


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[BreakingProxy]:
    """Run a proxy before the server."""
    made = BreakingProxy(url)
    async with made.running():
        yield made


# Sending


@pytest.mark.parametrize(
    "payload", [{"n": 1}, [1, "ä"], "text", "lone \ud800", b"\x00\xff", 2**80, None], ids=lambda value: ascii(value)
)
async def test_payload_arrives_as_it_was_sent(http: HttpBus, payload: Any) -> None:
    """JSON, text and bytes are the same after both ways, byte for byte."""
    message_id = await http.send("t", payload)

    (one,) = await http.pop("t", auto_ack=True)

    assert (one.message.id, one.payload) == (message_id, payload)


async def test_message_options_arrive(http: HttpBus, conn: Any) -> None:
    """Every option beside the payload reaches the database."""
    options: Any = {
        "key": "k", "headers": {"a": "b"}, "priority": 7, "correlation_id": "c", "content_type": "text/html",
        "dedup_key": "d",
    }  # fmt: skip
    first = await http.send("t", "<p>", **options)
    again = await http.send("t", "<p>", **options)
    await http.send("t", 1, delay=timedelta(minutes=1))

    row = await conn.fetchrow("select * from postbus.messages where id = $1", first)
    assert again == first
    assert (row["key"], row["headers"], row["priority"], row["correlation_id"]) == ("k", '{"a": "b"}', 7, "c")
    assert (row["content_type"], row["payload"]) == ("text/html", b"<p>")
    assert await states_of(conn, "t") == {"waiting": 1, "scheduled": 1}


async def test_concurrent_sends_share_requests(proxy: BreakingProxy, conn: Any) -> None:
    """500 sends at once are a few requests, and each gets its own id."""
    async with HttpBus(proxy.url) as http:
        ids = await asyncio.gather(*(http.send("t", number) for number in range(500)))

    rows = await conn.fetch("select id, payload from postbus.messages where topic = 't'")
    assert {row["id"]: int(row["payload"]) for row in rows} == dict(zip(ids, range(500), strict=True))
    assert proxy.requests <= 5


async def test_refused_send_fails_alone(http: HttpBus, bus: Bus, conn: Any) -> None:
    """Its sender gets the server's refusal, and the others of the same request are sent."""
    await bus.admin.create_topic("t", max_payload_bytes=10)

    answers = await asyncio.gather(
        *(http.send("t", "x" * (11 if number == 7 else 5)) for number in range(20)), return_exceptions=True
    )

    assert [number for number, one in enumerate(answers) if isinstance(one, BaseException)] == [7]
    assert isinstance(answers[7], PayloadTooLarge)
    assert await count_of(conn, "t") == 19


async def test_send_many_commits_all_or_nothing(http: HttpBus, bus: Bus, conn: Any) -> None:
    """If one message is refused, none is published."""
    await bus.admin.create_topic("t", max_payload_bytes=10)

    ids = await http.send_many("t", ["a", Outgoing(payload="b", key="k")])
    with pytest.raises(PayloadTooLarge):
        await http.send_many("t", ["c", "d" * 11])

    rows = await conn.fetch("select id, payload, key from postbus.messages where topic = 't' order by id")
    assert [tuple(row) for row in rows] == [(ids[0], b"a", None), (ids[1], b"b", "k")]
    assert await http.send_many("t", []) == []


async def test_lost_answer_doubles_nothing(proxy: BreakingProxy, conn: Any) -> None:
    """The request is repeated and recognised: each message is published once."""
    async with HttpBus(proxy.url) as http:
        proxy.lose_answers = 3
        ids = await asyncio.gather(*(http.send("t", number) for number in range(50)))

    assert proxy.lose_answers == 0
    assert len(set(ids)) == 50
    assert await count_of(conn, "t") == 50


async def test_unknown_outcome_is_raised_without_deduplication(proxy: BreakingProxy, conn: Any) -> None:
    """The request is not repeated, because the message may exist."""
    async with HttpBus(proxy.url, dedup=False) as http:
        proxy.lose_answers = 1
        with pytest.raises(CommitUnknown):
            await http.send("t", 1)
        await http.send("t", 2)

    assert await count_of(conn, "t") == 2
    assert await conn.fetchval("select count(*) from postbus.dedup") == 0


async def test_unavailable_server_is_waited_for(url: str, conn: Any) -> None:
    """The client waits for its `patience`, and then raises."""
    proxy = BreakingProxy(url)
    async with proxy.running():
        pass
    async with HttpBus(proxy.url, patience=30) as http, HttpBus(proxy.url, patience=0.2) as hasty:
        sending = asyncio.create_task(http.send("t", 1))
        with pytest.raises(DatabaseUnavailable, match="the server cannot be reached"):
            await hasty.send("t", 2)
        async with proxy.running():
            await asyncio.wait_for(sending, 20)

    assert await count_of(conn, "t") == 1


async def test_sends_under_way_are_bounded() -> None:
    """A send beyond the bound waits in order, also behind a cancelled one."""
    room = SendBudget(2, 100)
    entered: list[str] = []
    leave = {name: asyncio.Event() for name in "abcde"}

    async def send(name: str, size: int) -> None:
        async with room.taken(size):
            entered.append(name)
            await leave[name].wait()

    tasks = {
        name: asyncio.create_task(send(name, size)) for name, size in zip("abcde", (60, 60, 60, 10, 500), strict=True)
    }
    await asyncio.sleep(0)
    assert entered == ["a"]
    tasks["b"].cancel()
    leave["a"].set()
    await asyncio.gather(tasks["a"], tasks["b"], return_exceptions=True)
    await asyncio.sleep(0)
    assert entered == ["a", "c", "d"]
    for name in "cde":
        leave[name].set()
    await asyncio.gather(tasks["c"], tasks["d"], tasks["e"])
    assert entered == ["a", "c", "d", "e"]
    assert (room.count, room.size) == (0, 0)


async def test_sending_beyond_the_bound_succeeds(url: str, conn: Any) -> None:
    """With room for three messages, a hundred are sent all the same."""
    async with HttpBus(url, max_pending=3, max_pending_bytes=1000) as http:
        await asyncio.gather(*(http.send("t", number) for number in range(100)))

    assert await count_of(conn, "t") == 100


# Popping


async def test_popped_messages_can_be_settled(http: HttpBus, bus: Bus, conn: Any) -> None:
    """Each settlement does what it does in the database."""
    await send_numbers(bus, "t", 6)
    popped = await http.pop("t", batch=5, lease=60)
    done, again, bad, back, _ = popped

    await done.ack()
    await again.retry(delay=60, error="not now")
    await bad.dead_letter("no good", error="why")
    await back.release()
    await popped.extend("1h")
    await popped.ack()

    rows = await conn.fetch("select payload, state, last_error from postbus.messages where topic = 't' order by id")
    assert [tuple(row) for row in rows] == [
        (b"1", "retrying", "not now"), (b"2", "dead", "no good: why"), (b"3", "waiting", None), (b"5", "waiting", None),
    ]  # fmt: skip


async def test_leaving_the_block_settles(http: HttpBus, bus: Bus, conn: Any) -> None:
    """It acknowledges, or retries after an error."""
    await send_numbers(bus, "t", 2)
    async with http.pop("t"):
        pass
    with pytest.raises(ZeroDivisionError):
        async with http.pop("t"):
            raise ZeroDivisionError

    assert await states_of(conn, "t") == {"retrying": 1}


async def somebody_waits(conn: Any) -> None:
    """Check that the server listens for a poll."""
    listens = (
        "select exists (select from pg_stat_activity where datname = current_database() and query ilike 'listen %')"
    )
    assert await conn.fetchval(listens)


async def test_waiting_pop_gets_a_later_message(http: HttpBus, bus: Bus, conn: Any) -> None:
    """It returns empty when its time is over."""
    waiting = asyncio.ensure_future(_pop(http, wait=30))
    await eventually(somebody_waits, conn)
    await bus.send("t", 1)

    assert (await asyncio.wait_for(waiting, 10)).payloads == [1]
    assert not await http.pop("t", wait=0.2)


async def _pop(http: HttpBus, **options: Any) -> Any:
    return await http.pop("t", **options)


async def test_cancelled_pop_leaves_nothing_leased(http: HttpBus, bus: Bus, conn: Any) -> None:
    """The server notices that the caller has left."""
    waiting = asyncio.ensure_future(_pop(http, wait=30))
    await eventually(somebody_waits, conn)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await bus.send("t", 1)

    async with http.pop("t", wait=10) as popped:
        assert popped.payloads == [1]
    assert await leased(conn, "t") == 0


async def test_lost_lease_is_raised(http: HttpBus, bus: Bus, conn: Any) -> None:
    """Every settlement raises LeaseLost, and changes nothing."""
    ids = await send_numbers(bus, "t", 2)
    popped = await http.pop("t", batch=2)
    await lose(conn, popped)

    for settle in (popped.extend, popped[0].ack, popped[1].retry):
        with pytest.raises(LeaseLost) as lost:
            await settle()
        assert set(lost.value.ids) <= set(ids)
    assert await states_of(conn, "t") == {"retrying": 2}


async def test_kept_leases_are_extended(http: HttpBus, bus: Bus, conn: Any) -> None:
    """`keep=True` extends the lease while the block runs; a topic's own lease is known, too."""
    await bus.admin.create_topic("t", lease="3s")
    await bus.send("t", 1)
    ends = "select ends_at from postbus.lease"
    async with http.pop("t", keep=True) as popped:
        assert timedelta(seconds=1) <= popped[0].remaining <= timedelta(seconds=3)
        first = await conn.fetchval(ends)
        async with asyncio.timeout(20):
            while await conn.fetchval(ends) == first:
                await asyncio.sleep(0.05)

    assert await states_of(conn, "t") == {}


async def test_group_is_popped_through_a_server(http: HttpBus, bus: Bus) -> None:
    """It is subscribed, and gets retried messages in order."""
    await create_log(bus, "t")
    told = await http.admin.subscribe_group("g", "t", start=Start.BEGINNING)
    await http.send("t", 1, key="k")
    await http.send("t", 2, key="k")

    async with http.pop("t", group="g", batch=5) as popped:
        await popped[0].retry(delay=0)
        assert [one.is_open for one in popped] == [False, False]
    async with http.pop("t", group="g", batch=5, key="k") as again:
        assert [(one.payload, one.message.attempt) for one in again] == [(1, 2), (2, 1)]

    assert told["is_new"]


# Transactions


async def test_results_commit_with_the_ack(http: HttpBus, bus: Bus, conn: Any) -> None:
    """Consuming, transforming and producing across topics is one request."""
    await send_numbers(bus, "t", 2)

    async with http.pop("t", batch=2) as popped, http.transaction() as tx:
        await popped.ack(tx)
        await http.publish(tx, "sum", sum(popped.payloads), key="k")
        await http.publish_many(tx, "each", popped.payloads)

    assert await states_of(conn, "t") == {}
    assert [len(ids) for ids in tx.ids] == [1, 2]
    assert (await bus.pop("sum")).payloads == [1]
    assert (await bus.pop("each", batch=5)).payloads == [0, 1]


async def test_failed_transaction_changes_nothing(http: HttpBus, bus: Bus, conn: Any) -> None:
    """After an error of the block, or a lost lease, the messages can be settled differently."""
    await send_numbers(bus, "t", 2)
    first, second = await http.pop("t"), await http.pop("t")
    with pytest.raises(ZeroDivisionError):
        async with http.transaction() as tx:
            await first.ack(tx)
            await http.publish(tx, "out", 1)
            raise ZeroDivisionError
    await first.dead_letter("no good")
    await lose(conn, second)
    with pytest.raises(LeaseLost):
        async with http.transaction() as tx:
            await second.ack(tx)
            await http.publish(tx, "out", 1)

    assert await states_of(conn, "t") == {"dead": 1, "retrying": 1}
    assert await states_of(conn, "out") == {}


async def test_unknown_outcome_of_a_transaction_is_raised(proxy: BreakingProxy, bus: Bus, conn: Any) -> None:
    """It is not repeated. Its messages are retried, which changes nothing because it had committed."""
    await bus.send("t", 1)
    async with HttpBus(proxy.url) as http:
        with pytest.raises(CommitUnknown):
            async with http.pop("t") as popped, http.transaction() as tx:
                await popped.ack(tx)
                await http.publish(tx, "out", 1)
                proxy.lose_answers = 1

    assert await states_of(conn, "t") == {}
    assert await states_of(conn, "out") == {"waiting": 1}


async def test_impossible_uses_of_a_transaction_are_refused(http: HttpBus, bus: Bus) -> None:
    """It cannot retry, it ends once, and other connections do not belong to this bus."""
    await bus.send("t", 1)
    popped = await http.pop("t")
    async with http.transaction() as tx:
        with pytest.raises(InvalidInput, match="cannot retry"):
            await popped.retry(tx)
    with pytest.raises(InvalidInput, match="has ended"):
        await http.publish(tx, "out", 1)
    with pytest.raises(InvalidInput, match="not a transaction of this bus"):
        await popped.ack("something else")
    await popped.ack()


# Reading


async def test_admin_reads_topics_groups_and_messages(http: HttpBus, bus: Bus) -> None:
    """Dead letters can be read too."""
    await create_log(bus, "log")
    await http.admin.subscribe_group("g/1", "log")
    ids = await send_numbers(bus, "t", 3)
    await (await bus.pop("t")).dead_letter("no good")

    assert {one["name"] for one in await http.admin.topics()} >= {"log", "t"}
    assert (await http.admin.topic("log"))["semantics"] == "PUB_SUB"
    assert [one["group_name"] for one in await http.admin.groups("log")] == ["g/1"]
    assert len(await http.admin.groups()) == 1
    assert (await http.admin.group("log", "g/1"))["state"] == "ACTIVE"
    assert [one["id"] for one in await http.admin.messages("t", after_id=ids[0], limit=1)] == [str(ids[1])]
    assert [one["id"] for one in await http.admin.messages("t", limit=1, newest=True)] == [str(ids[2])]
    assert (await http.admin.message("t", ids[1]))["state"] == "waiting"
    assert [one["reason"] for one in await http.admin.dead_letters("t")] == ["no good"]


async def test_errors_are_those_of_postbus(http: HttpBus, url: str) -> None:
    """They have the server's code and remedy; mistakes in the client are raised by the client."""
    with pytest.raises(TopicNotFound) as missing:
        await http.admin.topic("nothing")
    assert missing.value.remedy
    with pytest.raises(InvalidOption):
        await http.send("t", 1, priority=10)
    with pytest.raises(InvalidOption, match="the token names the consumer"):
        http.pop("t", member="me")
    wrong: list[dict[str, Any]] = [{"url": "127.0.0.1"}, {"timeout": 0}, {"patience": -1}, {"max_pending": 0}]
    for options in wrong:
        with pytest.raises(InvalidOption):
            HttpBus(**{"url": url, **options})


async def test_token_is_sent(bus: Bus) -> None:
    """A server with authentication accepts it, and refuses requests without one or with the wrong role."""
    async with serving(bus, auth=True) as address:
        token = await new_token(bus, "producer")
        async with HttpBus(address, token=token) as http, HttpBus(address) as stranger:
            await http.send("t", 1)
            with pytest.raises(PostbusError, match="role"):
                await http.pop("t")
            with pytest.raises(PostbusError):
                await stranger.send("t", 1)


def test_missing_httpx_is_reported() -> None:
    """Importing the client names the extra to install."""
    program = (
        "import sys; sys.modules['httpx'] = None\n"
        "from postbus import InvalidInput\n"
        "try: import postbus.http_client\n"
        "except InvalidInput as error: print(error.remedy)"
    )

    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert told.stdout == "pip install 'postbus[client]'\n"


async def test_heartbeat_works_through_a_server(http: HttpBus, bus: Bus, conn: Any) -> None:
    """A client keeps its group alive, in one topic or in all of a pattern."""
    await create_log(bus, "o.a")
    assert not await http.pop("o.*", group="g")
    await conn.execute("update postbus.subscription set state = 'DEAD'")

    assert await http.heartbeat("o.a", group="g") == [Heartbeat("o.a", "ACTIVE", missed=0, skipped=0)]
    assert await http.heartbeat("o.*", group="g") == [Heartbeat("o.a", "ACTIVE")]


async def test_starts_reach_the_server(http: HttpBus, bus: Bus) -> None:
    """A new group begins now, a while before now or at a message, as with the database's own bus."""
    await create_log(bus, "t")
    ids = await send_numbers(bus, "t", 3)

    assert not await http.pop("t", group="now", start=Start.NOW)
    assert (await http.pop("t", group="back", mode="new", look_back="1h", batch=9)).payloads == [0, 1, 2]
    assert (await http.pop("t", group="at", start=Start.from_message(ids[1]), batch=9)).payloads == [1, 2]
    assert (await http.pop("t", group="all", start=Start.BEGINNING, batch=9)).payloads == [0, 1, 2]
