"""postbus relay: as users run it."""

from __future__ import annotations

import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.helpers import Cli, finish, start
from postbus import Bus, Outgoing
from support.eventually import eventually
from support.grouping import is_through

SINK = '''
import json
from pathlib import Path
from postbus import Ack, DeadLetter, InvalidPayload

class Lines:
    """Writes messages to a file, one line each."""
    keeps_order = True
    def __init__(self, path="lines", refuse=None):
        self.path, self.refuse = Path(path), refuse
    async def open(self):
        pass
    async def send(self, parcels):
        with self.path.open("a") as file:
            for one in parcels:
                line = {"id": one.id, "target": one.target, "body": one.body.decode(), "headers": dict(one.headers)}
                file.write(json.dumps(line) + "\\n")
        return [DeadLetter("unwanted") if one.body.decode() == self.refuse else Ack() for one in parcels]
    async def close(self):
        pass

class Events:
    def check(self, message):
        if message.headers.get("event-type") == "strange":
            raise InvalidPayload("no such event")

events = Events()
number = 7
'''


@pytest.fixture
def folder(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder where commands run, in this process too: with a module that has a sink."""
    (cli.cwd / "own.py").write_text(SINK)
    monkeypatch.chdir(cli.cwd)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    return cli.cwd


def lines(folder: Path, name: str = "lines") -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def publish_events(bus: Bus, count: int = 4) -> None:
    """Publish events of two types and two aggregates."""
    await bus.admin.create_topic("orders", semantics="PUB_SUB", retention="30 days", lanes=1, lease="1s")
    events = [
        Outgoing(
            payload=n,
            key=f"{n % 2}",
            headers={
                "event-type": "placed" if n < 2 else "paid", "aggregate-type": "order", "aggregate-id": f"{n % 2}"
            },
        )
        for n in range(count)
    ]  # fmt: skip
    async with bus.transaction() as tx:
        await bus.publish_many(tx, "orders", events)


async def relayed(cli: Cli, conn: Any, *args: str, group: str = "relay-lines", **expected: Any) -> None:
    """Run a relay until it has sent everything, and end it."""
    process = await cli.start("relay", "run", *args)
    await is_through(conn, group, "orders", within=30, **expected)
    process.send_signal(signal.SIGTERM)
    assert (await finish(process)).done()


async def test_relay_run_uses_a_sink_of_the_users_own(cli: Cli, bus: Bus, conn: Any, folder: Path) -> None:
    """The sink is given by module and name, and options of the relay and of the sink take effect."""
    await publish_events(bus)
    await bus.send("orders", "x", headers={"event-type": "strange"})
    options = (
        "--topic", "orders", "--sink", "own:Lines", "--sink-option", "path=elsewhere", "--sink-option", 'refuse="3"',
        "--target", "{topic}.{event_type}", "--form", "cloudevents", "--source", "/shop", "--registry", "own:events",
        "--batch", "3", "--group", "relay-own", "--poll", "100ms", "--concurrency", "1", "--max-attempts", "2",
        "--retention", "30d", "--name", "me", "--log-level", "debug", "--log-format", "json",
    )  # fmt: skip
    await relayed(cli, conn, *options, group="relay-own", passed=5, dead=2)

    got = lines(folder, "elsewhere")
    assert [one["target"] for one in got] == ["orders.placed", "orders.placed", "orders.paid", "orders.paid"]
    assert got[0]["headers"]["ce-source"] == "/shop"
    reasons = [one.reason or "" for one in await bus.admin.dead_letters("orders", group="relay-own")]
    assert sorted(reasons) == ["the registry refused it: no such event", "unwanted"]


async def test_relay_run_reads_routes_from_a_file(cli: Cli, bus: Bus, conn: Any, folder: Path) -> None:
    """One process runs each route with its sink, and the environment overrides the file."""
    await publish_events(bus)
    (folder / "relay.toml").write_text(
        '[sinks.one]\nurl = "own:Lines"\npath = "one"\n[sinks.two]\nurl = "own:Lines"\npath = "two"\n'
        '[[routes]]\ntopic = "orders"\nsink = "one"\n[[routes]]\ntopic = "orders"\nsink = "two"\ntarget = "t"\n'
    )
    env = {**cli.env, "POSTBUS_RELAY_FORM": "cloudevents", "POSTBUS_RELAY_CONFIG": "relay.toml"}
    process = await start("relay", "run", env=env, cwd=folder)
    for group in ("relay-one", "relay-two"):
        await is_through(conn, group, "orders", within=30, passed=4)
    process.send_signal(signal.SIGTERM)
    (await finish(process)).done()
    assert [one["target"] for one in lines(folder, "one") + lines(folder, "two")] == ["orders"] * 4 + ["t"] * 4
    assert lines(folder, "one")[0]["headers"]["ce-id"]


async def test_replay_sends_retained_messages_again(cli: Cli, bus: Bus, conn: Any, folder: Path) -> None:
    """They are selected by time, type or aggregate and get other ids; the relay's position stays."""
    await publish_events(bus)
    route = ("--topic", "orders", "--sink", "own:Lines", "--group", "relay-lines")
    await relayed(cli, conn, *route, passed=4)
    sent = lines(folder)
    middle = datetime.now(UTC).isoformat()

    async def replayed(*which: str) -> list[str]:
        (folder / "lines").unlink(missing_ok=True)
        told = (await cli.quick("relay", "replay", *route, *which, "--yes", "--json")).done().json
        assert told["sent"] == told["found"] == len(lines(folder))
        return [one["body"] for one in lines(folder)]

    assert await replayed("--all") == ["0", "1", "2", "3"]
    assert await replayed("--event-type", "paid") == ["2", "3"]
    assert await replayed("--aggregate-id", "1", "--aggregate-type", "order") == ["1", "3"]
    assert await replayed("--from", "1h") == ["0", "1", "2", "3"]
    assert await replayed("--from", middle) == []
    assert await replayed("--until", middle, "--event-type", "placed") == ["0", "1"]
    again = lines(folder)[0]
    assert again["id"].startswith(f"{sent[0]['id']}/replay-")
    assert again["headers"]["event_id"] == sent[0]["headers"]["event_id"]
    told = (await cli.quick("relay", "replay", *route, "--all", "--dry-run")).done()
    assert told.out == "would send 4 messages of orders again\n"
    refused = await cli.quick("relay", "replay", *route, "--all", "--yes", "--sink-option", 'refuse="2"')
    assert "unwanted" in refused.failed(1).out
    await is_through(conn, "relay-lines", "orders", passed=4)


async def test_replay_of_a_queue_sends_finished_messages_again(cli: Cli, bus: Bus, conn: Any, folder: Path) -> None:
    """A QUEUE keeps sent messages for its retention."""
    await bus.admin.create_topic("orders", retention="30 days")
    for n in range(3):
        await bus.send("orders", n)
    process = await cli.start("relay", "run", "--topic", "orders", "--sink", "own:Lines")

    async def finished() -> None:
        assert len(lines(folder)) == 3

    await eventually(finished, within=30)
    process.send_signal(signal.SIGTERM)
    (await finish(process)).done()
    await cli.quick("relay", "replay", "--topic", "orders", "--sink", "own:Lines", "--all", "-y")
    assert sorted(one["body"] for one in lines(folder)) == ["0", "0", "1", "1", "2", "2"]


async def test_rewind_moves_the_relay_back(cli: Cli, bus: Bus, conn: Any, folder: Path) -> None:
    """The relay sends again from there."""
    await publish_events(bus)
    route = ("--topic", "orders", "--sink", "own:Lines", "--group", "relay-lines")
    await relayed(cli, conn, *route, passed=4)
    told = await cli.quick(
        "relay", "rewind", "--topic", "orders", "--group", "relay-lines", "--to", "beginning", "--dry-run"
    )
    assert "would go on from the beginning, with 4 messages" in told.done().out
    (
        await cli.quick("relay", "rewind", "--topic", "orders", "--group", "relay-lines", "--to", "beginning", "--yes")
    ).done()
    await relayed(cli, conn, *route)
    assert [one["body"] for one in lines(folder)] == ["0", "1", "2", "3"] * 2


async def test_status_reports_backlog_and_alerts(cli: Cli, bus: Bus, conn: Any, folder: Path) -> None:
    """It shows unsent messages, their age and dead letters; above a threshold the exit code is 1."""
    await publish_events(bus)
    missing = await cli.quick("relay", "status", "--topic", "orders", "--group", "relay-lines", "--json")
    assert missing.failed(1).json["relays"][0]["alerts"] == [
        "it has never run: postbus relay run --topic orders --group relay-lines --sink URL, or --config FILE"
    ]
    route = ("--topic", "orders", "--sink", "own:Lines", "--group", "relay-lines", "--sink-option", 'refuse="3"')
    await relayed(cli, conn, *route, passed=4, dead=1)
    told = (await cli.quick("relay", "status", "--json")).failed(1).json
    [one] = told["relays"]
    assert (one["topic"], one["group"], one["backlog"], one["dead"]) == ("orders", "relay-lines", 0, 1)
    assert one["alerts"] == ["1 messages are dead letters (max_dead 0)"]
    assert "relay-lines" in (await cli.quick("relay", "status", "--max-dead", "1")).done().out

    await bus.send("orders", 9)
    late = await cli.quick("relay", "status", "--max-dead", "1", "--max-backlog", "0", "--max-age", "1ms", "--json")
    [one] = late.failed(1).json["relays"]
    assert one["note"].startswith("no process works for it: stopped as planned by")
    alerts = " ".join(one["alerts"])
    assert "messages are not sent (max_backlog 0)" in alerts
    assert "the oldest has not been sent for" in alerts


async def test_suggested_topic_has_a_long_enough_retention(cli: Cli, bus: Bus, folder: Path) -> None:
    """A retention longer than the default `max_retention` raises that limit too."""
    route = ("--topic", "orders", "--sink", "own:Lines", "--retention", "60d")
    remedy = (await cli("relay", "run", *route)).failed(3).err.splitlines()[-1].partition("create it: ")[2]
    (await cli.quick(*remedy.split()[1:])).done()
    assert (await bus.admin.topic("orders")).retention.days == 60


async def test_status_of_an_unknown_relay_names_the_existing_ones(cli: Cli, bus: Bus, conn: Any, folder: Path) -> None:
    """Running a relay under another name would start a second one beside the first."""
    nowhere = (await cli.quick("relay", "status", "--topic", "orders", "--json")).failed(1).json["relays"]
    assert "postbus topics create orders --semantics PUB_SUB --retention 2592000s" in nowhere[0]["alerts"][0]
    await publish_events(bus)
    await relayed(cli, conn, "--topic", "orders", "--sink", "own:Lines", "--group", "relay-lines", passed=4)

    [one] = (await cli.quick("relay", "status", "--topic", "orders", "--json")).failed(1).json["relays"]

    assert one["alerts"] == ["it has never run, but there is relay-lines: name that by --group"]


async def test_status_covers_queues_and_short_retentions(cli: Cli, bus: Bus) -> None:
    """A QUEUE has a backlog too, and a retention shorter than the relay's is an alert."""
    await bus.send("orders", 1)
    told = await cli.quick("relay", "status", "--topic", "orders", "--json")
    [one] = told.failed(1).json["relays"]
    assert (one["state"], one["backlog"]) == ("QUEUE", 1)
    assert one["alerts"] == [
        "the topic keeps sent messages for 0:00:00, and the relay wants 30 days, 0:00:00: "
        "postbus topics set orders --retention 2592000s",
        "no process works for it: postbus relay run --topic orders --sink URL, or --config FILE",
    ]


async def test_status_reports_a_missing_process_without_a_backlog(cli: Cli, bus: Bus, conn: Any, folder: Path) -> None:
    """A relay that vanished is an alert, and one that was stopped as planned is a note."""
    await publish_events(bus)
    await relayed(cli, conn, "--topic", "orders", "--sink", "own:Lines", "--group", "relay-lines", passed=4)
    [one] = (await cli.quick("relay", "status", "--json")).done().json["relays"]
    assert (one["backlog"], one["alerts"]) == (0, [])
    assert one["note"].startswith("no process works for it: stopped as planned by")
    await conn.execute("update postbus.subscription set stopped_at = null")
    vanished = (await cli.quick("relay", "status", "--json")).failed(1).json["relays"]
    [alert] = vanished[0]["alerts"]
    assert alert.startswith("no process works for it: postbus relay run --topic orders --group relay-lines --sink URL")


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        ("run", 2, "nothing to relay"),
        ("run --topic orders", 2, "where is orders to be relayed to?"),
        ("run --topic orders --sink own:nothing", 2, "own has no 'nothing'"),
        ("run --topic orders --sink own:number", 4, "own:number is not a sink but of type int"),
        ("run --topic orders --sink own:Lines --sink-option speed=1", 4, "has no option 'speed'"),
        ("run --topic orders --sink own:Lines --sink-option x", 2, "is not NAME=VALUE"),
        ("run --topic orders --sink own:Lines --registry own:number", 4, "own:number is no registry"),
        ("run --topic orders --sink own:Lines --batch 0", 4, "batch 0"),
        ("run --topic orders --sink ftp://x", 4, "of no known kind"),
        ("run --topic orders --sink null:", 3, "there is no topic 'orders' to relay"),
        ("run --config nothing.toml", 4, "nothing.toml cannot be read"),
        ("replay --topic orders --sink null:", 2, "which messages?"),
        ("replay --topic orders --sink null: --all --from 1h", 2, "which messages?"),
        ("replay --topic orders --sink null: --from soon", 4, "--from 'soon'"),
        ("replay --topic orders --sink null: --all --dry-run", 3, "there is no topic"),
        ("rewind --to now", 2, "which relay?"),
        ("rewind --to now --topic orders --group relay-x --yes", 3, "orders"),
        ("status --max-age soon", 4, "max_age 'soon'"),
    ],
)
async def test_relay_mistakes_are_reported(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, args: str, code: int, why: str
) -> None:
    """The error says what is wrong, without a traceback."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    told = await cli.quick("relay", *args.split())
    assert why in told.failed(code).err
