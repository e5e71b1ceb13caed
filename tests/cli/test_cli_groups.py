"""postbus groups …, and the other commands on PUB_SUB topics"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from cli.helpers import Cli, finish
from postbus import Bus, Start
from support.eventually import eventually
from support.grouping import bury


async def test_empty_group_list_explains_itself(cli: Cli, bus: Bus) -> None:
    """A queue has no groups, and a log may have none yet."""
    await bus.admin.create_topic("jobs")
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    assert "jobs is a QUEUE" in (await cli.quick("groups", "list", "jobs")).done().err
    assert "no groups of events yet: a group begins" in (await cli.quick("groups", "list", "events")).done().err


async def test_uncounted_lag_is_explained(cli: Cli, bus: Bus, events: str) -> None:
    """Without a process that consumes or sweeps, the lag is counted only on request."""
    for n in range(3):
        await bus.send(events, n)
    for command in (("list",), ("show", events, "mail")):
        assert "postbus sweep run" in (await cli.quick("groups", *command)).done().err
    (await cli.quick("sweep", "run")).done()
    assert (await bus.admin.group(events, "mail")).lag == 3


async def test_group_list_has_a_line_per_group(cli: Cli, bus: Bus, events: str) -> None:
    """The line shows state and lag."""
    await bus.send(events, 1)
    await bus.admin.pause_group(events, "stock")

    listed = await cli("groups", "list")
    of_topic = await cli.quick("groups", "list", events)

    heading, mail, stock = listed.done().out.splitlines()
    assert heading.split()[:5] == ["topic", "group", "state", "lag", "oldest"]
    assert mail.split()[:4] == ["events", "mail", "ACTIVE", "1"]
    assert stock.split()[:4] == ["events", "stock", "PAUSED", "1"]
    assert of_topic.done().out.count("\n") == 3


async def test_group_list_can_be_json(cli: Cli, bus: Bus, events: str) -> None:
    """It is one array with numbers as numbers; --all includes cancelled groups."""
    await bus.send(events, 1)
    await bus.admin.cancel_group(events, "stock")

    (live,) = (await cli.quick("groups", "list", "--json")).done().json
    every = (await cli.quick("groups", "list", "--all", "--json")).done().json

    assert (live["group_name"], live["lag"], live["workers"], live["members"]) == ("mail", 1, [], [])
    assert 0 <= live["lag_seconds"] < 60
    assert [one["state"] for one in every] == ["ACTIVE", "CANCELLED"]


async def test_empty_group_list_goes_to_stderr(cli: Cli, bus: Bus) -> None:
    """Without groups stdout is empty, and a hint goes to stderr."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")

    listed = (await cli.quick("groups", "list", "events")).done()

    assert (listed.out, listed.err) == ("", "no groups of events yet: a group begins with its first consumer\n")


async def test_group_show_prints_counts_and_members(cli: Cli, bus: Bus, events: str) -> None:
    """It prints the group's position and counts, and a line per member."""
    await bury(bus, 1, 2)

    shown = (await cli("groups", "show", events, "mail")).done().out
    as_json = (await cli.quick("groups", "show", events, "mail", "--json")).done().json

    facts, _, members = shown.partition("\n\n")
    told = dict(line.split(maxsplit=1) for line in facts.splitlines())
    assert (told["group"], told["state"], told["dead"], told["lag"]) == ("mail", "ACTIVE", "2", "0")
    assert (told["lanes"], told["started"]) == ("0 of 2 held", "from now")
    assert members.splitlines()[0].split()[0] == "member"
    assert [(one["processed"], one["failed"]) for one in as_json["members"]] == [(0, 2)]


async def test_group_can_be_paused_and_resumed(cli: Cli, events: str) -> None:
    """A paused group is listed as such until it is resumed; doing it twice changes nothing."""
    for _ in range(2):
        paused = await cli.quick("groups", "pause", events, "mail", "--json")
        assert paused.done().json["state"] == "PAUSED"

    resumed = await cli.quick("groups", "resume", events, "mail")

    assert resumed.done().out == "resumed mail on events\n"
    (shown,) = [one for one in (await cli.quick("groups", "list", "--json")).json if one["group_name"] == "mail"]
    assert shown["state"] == "ACTIVE"


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 4), ("", 4)])
async def test_group_cancel_asks(cli: Cli, bus: Bus, events: str, answer: str, code: int) -> None:
    """A group is cancelled only after a yes, and the question shows its lag."""
    await bus.send(events, 1)

    asked = await cli("groups", "cancel", events, "mail", given=answer)

    assert asked.code == code
    assert "which has 1 message to do?" in asked.err
    left = [one.group_name for one in await bus.admin.groups(events)]
    assert left == (["stock"] if code == 0 else ["mail", "stock"])


async def test_group_cancel_with_yes_does_not_ask(cli: Cli, events: str) -> None:
    """With --json the command prints the group as it ended."""
    cancelled = await cli.quick("groups", "cancel", events, "mail", "--yes", "--json")

    ended = cancelled.done().json
    assert (ended["group_name"], ended["state"], ended["lag"]) == ("mail", "CANCELLED", None)


@pytest.mark.parametrize(("answer", "code", "lag"), [("yes\n", 0, 0), ("\n", 4, 3)])
async def test_seek_asks(cli: Cli, bus: Bus, events: str, answer: str, code: int, lag: int) -> None:
    """The question has the lag before and after, and no answer changes nothing."""
    async with bus.transaction() as conn:
        await bus.publish_many(conn, events, [1, 2, 3])
    await (await bus.connect()).sweep_log()

    asked = await cli("groups", "seek", events, "mail", "--to", "now", given=answer)

    assert asked.code == code
    assert "It has 3 messages before it, and would have 0." in asked.err
    assert (await bus.admin.group(events, "mail")).lag == lag


async def test_seek_accepts_every_kind_of_start(cli: Cli, bus: Bus, events: str) -> None:
    """These are now, beginning, an id, a time and an age; a dry run only counts."""
    ids = [await bus.send(events, number) for number in range(3)]
    for place, count in (
        ("beginning", 3),
        ("now", 0),
        (str(ids[2]), 1),
        ("1h", 3),
        ("2100-01-01", 0),
        ("2020-01-01T12:00:00+02:00", 3),
    ):
        would = await cli.quick("groups", "seek", events, "mail", "--to", place, "--dry-run", "--json")
        did = await cli.quick("groups", "seek", events, "mail", "--to", place, "--yes")

        assert would.done().json == {"topic": events, "group": "mail", "to": place, "count": count, "dry_run": True}
        assert f"with {count} message" in did.done().out


MISTAKES = [
    ("groups show events gone", 3, "group 'gone' has no subscription to topic 'events'", "groups list"),
    ("groups pause events gone", 3, "group 'gone' has no subscription", "groups list"),
    ("groups cancel events gone --yes", 3, "group 'gone' has no subscription", "groups list"),
    ("groups seek events gone --to now --yes", 3, "group 'gone' has no subscription", "groups list"),
    ("groups show nowhere mail", 3, "there is no topic 'nowhere'", "topics create"),
    ("groups list nowhere", 3, "there is no topic 'nowhere'", "topics create"),
    ("groups seek nowhere mail --to now --yes", 3, "there is no topic 'nowhere'", "topics create"),
    ("groups pause jobs mail", 4, "topic 'jobs' is a QUEUE", "PUB_SUB"),
    ("groups show jobs mail", 4, "topic 'jobs' is a QUEUE", "PUB_SUB"),
    ("groups seek jobs mail --to now --yes", 4, "topic 'jobs' is a QUEUE", "PUB_SUB"),
    ("groups seek events mail", 2, "--to", "--help"),
    ("groups seek events mail --to soon", 4, "--to 'soon' is not a position in a log", "beginning"),
    ("groups seek events mail --to 99999999999999999999", 4, "larger than any id", "id of a message"),
    ("groups show events", 2, "GROUP", "--help"),
    ("groups pause events dead", 4, "DEAD cannot become PAUSED", "groups resurrect events dead"),
    ("consume events", 4, "topic 'events' is PUB_SUB", "postbus consume events --group NAME"),
    ("consume jobs --group mail", 4, "topic 'jobs' is a QUEUE", "topics migrate jobs --to PUB_SUB --group mail"),
    ("consume events --from now", 2, "--from is for groups", "--group"),
    ("consume events --group mail --from soon", 4, "--from 'soon' is not a position", "beginning"),
    ("consume events --group a!b", 4, "bad group name 'a!b'", "letters"),
    ("consume nowhere --group mail", 3, "there is no topic 'nowhere'", "--semantics PUB_SUB"),
    ("tail nowhere", 3, "there is no topic 'nowhere'", "topics create"),
    ("topics purge events", 4, "topic 'events' is PUB_SUB", "groups seek events"),
    ("topics resume events", 4, "topic 'events' is PUB_SUB", "groups resume events"),
    ("topics pause events", 4, "topic 'events' is PUB_SUB", "groups pause events"),
    ("topics delete events --yes", 4, "topic 'events' has", "--force"),
    ("topics create log --semantics LOG", 2, "'LOG' is not one of 'QUEUE', 'PUB_SUB'", "topics create --help"),
    ("topics create log --tracking SOME", 2, "'SOME' is not one of 'REFERENCE_COUNTING'", "topics create --help"),
    ("topics create log --storage none", 2, "'none' is not one of 'shared', 'own'", "topics create --help"),
    ("topics create log --semantics PUB_SUB --ordered", 4, "bad option", "always keep the order per key"),
    ("topics create log --tracking OFFSET_WATERMARK", 4, "bad option", "tracking is for PUB_SUB topics"),
    ("topics create log --storage own", 4, "bad option", "storage is for PUB_SUB topics"),
    ("topics create log --semantics PUB_SUB --lanes 0", 4, "bad option", "lanes goes from 1 to 1024"),
    (
        "topics create log --semantics PUB_SUB --max-retention 1h",
        4,
        "bad option",
        "zero_subscription_retention (1 day): raise it",
    ),
    ("topics create log --semantics PUB_SUB --heartbeat-timeout 61s", 4, "bad option", "at least twice"),
    ("topics create log --semantics PUB_SUB --zombie-time soon", 4, "--zombie-time 'soon' is not a duration", "24h"),
    ("topics create log --block-writes-on-zero-subscriptions", 4, "bad option", "is for PUB_SUB topics"),
    ("topics set events --lanes 3", 4, "lanes and storage of topic 'events' cannot change", "another topic"),
    ("dead-letters redrive events --all", 4, "its dead letters belong to groups", "--group NAME"),
    ("dead-letters redrive events --all --group gone", 3, "group 'gone' has no subscription", "groups list"),
    ("dead-letters redrive jobs --all --group mail", 4, "is a QUEUE and has no groups", "leave the group out"),
    ("dead-letters redrive events 7 --group mail", 3, "no dead letter 7", "dead-letters list"),
    ("dead-letters purge events --all --group gone", 3, "group 'gone' has no subscription", "groups list"),
    ("dead-letters purge jobs --all --group mail", 4, "is a QUEUE, and has no groups", ""),
    ("dead-letters list events --group gone", 3, "group 'gone' has no subscription", "groups list"),
    ("dead-letters show 7 --group mail", 3, "there is no dead letter 7 of group 'mail'", "dead-letters list"),
]


async def test_group_mistakes_are_reported(cli: Cli, bus: Bus, conn: Any, events: str) -> None:
    """A mistake ends with its exit code, the reason and a remedy, each on one line."""
    await bus.admin.create_topic("jobs")
    await (await bus.connect()).subscribe(events, "dead", Start.NOW, "block")
    await conn.execute("update postbus.subscription set state = 'DEAD' where group_name = 'dead'")
    for args, code, told, remedy in MISTAKES:
        failed = (await cli.quick(*args.split())).failed(code)

        error, what_to_do = failed.err.splitlines()
        assert told in error, args
        assert remedy in what_to_do, args
        assert failed.out == ""


# Topics

OPTIONS = {
    "semantics": "PUB_SUB",
    "tracking": "OFFSET_WATERMARK",
    "lanes": 3,
    "storage": "own",
    "segment_size": 50,
    "zero_subscription_retention": 7200.0,
    "block_writes_on_zero_subscriptions": True,
    "max_retention": 86400.0 * 3,
    "dead_retention": 36000.0,
    "zombie_time": 86400.0,
    "heartbeat_interval": 5.0,
    "heartbeat_timeout": 60.0,
    "retention": 3600.0,
}


async def test_log_is_created_with_all_options(cli: Cli) -> None:
    """The topic shows the given options afterwards."""
    flags = "--semantics PUB_SUB --tracking OFFSET_WATERMARK --lanes 3 --storage own --segment-size 50 --retention 1h"
    more = "--zero-subscription-retention 2h --block-writes-on-zero-subscriptions --max-retention 3d --zombie-time 24h"
    beats = "--dead-retention 10h --heartbeat-interval 5s --heartbeat-timeout 60s"

    made = await cli("topics", "create", "log", *f"{flags} {more} {beats}".split(), "--json")

    assert made.done().json.items() >= OPTIONS.items()


async def test_log_options_can_be_set_and_shown(cli: Cli, bus: Bus, events: str) -> None:
    """`show` prints only options of the topic's semantics."""
    changed = await cli.quick("topics", "set", events, "--segment-size", "7", "--zombie-time", "2d", "--json")
    shown = dict(line.split(maxsplit=1) for line in (await cli.quick("topics", "show", events)).done().out.splitlines())
    await bus.admin.create_topic("jobs")
    queue = (await cli.quick("topics", "show", "jobs")).done().out
    listed = (await cli.quick("topics", "list")).done().out

    assert (changed.done().json["segment_size"], changed.json["zombie_time"]) == (7, 172800.0)
    assert (shown["segment_size"], shown["groups"], shown["zombie_time"]) == ("7", "2", "2d")
    assert not {"ordered", "waiting"} & shown.keys()
    assert "zombie_time" not in queue
    assert "PUB_SUB, 2 groups, 0 published" in listed


async def test_delete_with_force_deletes_the_groups(cli: Cli, bus: Bus, events: str) -> None:
    """The topic is deleted together with its groups."""
    deleted = await cli.quick("topics", "delete", events, "--force")

    assert deleted.done().out == "deleted events, its log and 2 groups\n"
    assert await bus.admin.groups() == []


# Consume and tail


async def test_consume_in_a_group_continues_where_it_stopped(cli: Cli, bus: Bus, events: str) -> None:
    """Each group gets every message once, and the group's next process continues behind it."""
    await bus.send(events, {"n": 1}, key="k")
    await bus.send(events, {"n": 2}, key="k")

    first = await cli("consume", events, "--group", "mail", "--max", "1", "--json")
    second = await cli("consume", events, "--group", "mail", "--idle", "1", "--json")
    other = await cli("consume", events, "--group", "stock", "--max", "2", "--json")

    assert [one["payload"] for one in first.done().lines] == [{"n": 1}]
    assert [(one["payload"], one["attempt"]) for one in second.done().lines] == [({"n": 2}, 1)]
    assert [one["payload"] for one in other.done().lines] == [{"n": 1}, {"n": 2}]


async def test_messages_read_ahead_do_not_begin(cli: Cli, bus: Bus, events: str) -> None:
    """Messages beyond --max stay in the log without an attempt or a failure."""
    await bus.admin.set_topic(events, max_attempts=1)
    async with bus.transaction() as conn:
        await bus.publish_many(conn, events, range(500))

    consumed = await cli("consume", events, "--group", "mail", "--max", "3")

    assert (consumed.done().out.count("\n"), consumed.err) == (3, "handled 3 messages\n")
    group = await bus.admin.group(events, "mail")
    counts = ("passed", "processed", "failed", "retrying", "parked", "dead")
    assert {count: getattr(group, count) for count in counts} == {
        "passed": 3, "processed": 3, "failed": 0, "retrying": 0, "parked": 0, "dead": 0,
    }  # fmt: skip


async def test_messages_beyond_max_go_to_the_next_consumer(cli: Cli, bus: Bus, events: str) -> None:
    """The group reads ahead, but leaves messages beyond --max untouched."""
    async with bus.transaction() as conn:
        await bus.publish_many(conn, events, range(20))

    first = await cli("consume", events, "--group", "mail", "--max", "7", "--concurrency", "3", "--json")
    second = await cli("consume", events, "--group", "mail", "--idle", "2", "--json")

    assert len(first.done().lines) == 7
    payloads = {one["payload"] for one in first.lines + second.done().lines}
    assert payloads == set(range(20))
    assert {one["attempt"] for one in second.lines} == {1}


async def test_new_group_begins_where_it_is_told(cli: Cli, bus: Bus, events: str) -> None:
    """--from applies to a new group; an existing one keeps its position and says so."""
    ids = [await bus.send(events, number) for number in range(3)]

    every = await cli("consume", events, "--group", "late", "--from", "beginning", "--max", "3")
    from_id = await cli("consume", events, "--group", "later", "--from", str(ids[2]), "--max", "1", "--json")
    again = await cli("consume", events, "--group", "late", "--from", "beginning", "--idle", "0.5")

    assert "late is new on events, and begins from the beginning" in every.done().err
    assert every.out.count("\n") == 3
    assert [one["id"] for one in from_id.done().lines] == [ids[2]]
    assert (again.done().out, "postbus groups seek events late" in again.err) == ("", True)


async def test_new_group_begins_from_now_on_by_default(cli: Cli, bus: Bus, events: str) -> None:
    """The exit code of the executed command is the outcome."""
    await bus.send(events, "before")
    process = await cli.start("consume", events, "--group", "new", "--max", "2", "--exec", "cat; exit 65", "--json")

    async def is_subscribed() -> None:
        assert await bus.admin.groups(events, "new")

    await eventually(is_subscribed, within=30)
    for text in ("after", "later"):
        await bus.send(events, text, key="k")

    done = (await finish(process)).done()
    assert [(one["stdout"], one["outcome"]) for one in done.lines] == [("after", "dead"), ("later", "dead")]
    assert [one.group_name for one in await bus.admin.dead_letters()] == ["new", "new"]


async def test_consuming_for_a_paused_group_explains_the_silence(cli: Cli, bus: Bus, events: str) -> None:
    """The command says how to resume the group."""
    await bus.send(events, 1)
    await bus.admin.pause_group(events, "mail")

    consumed = await cli("consume", events, "--group", "mail", "--idle", "0.5")

    assert consumed.done().out == ""
    assert "postbus groups resume events mail" in consumed.err


async def test_tail_follows_the_log(cli: Cli, bus: Bus, events: str) -> None:
    """It shows retained and new messages once each, without affecting groups."""
    async with bus.transaction() as conn:
        ids = await bus.publish_many(conn, events, range(1200))
    process = await cli.start("tail", events, "--from-start")
    assert process.stdout is not None
    shown = [int((await process.stdout.readline()).split()[0]) for _ in ids]
    assert shown == ids

    await bus.send(events, "after", key="k")

    line = (await process.stdout.readline()).decode()
    assert (line.split()[2], line.split()[4:]) == ("lane", ["k", "after"])
    process.send_signal(signal.SIGINT)
    assert (await finish(process)).code == 130
    assert (await bus.admin.group(events, "mail")).passed == 0


async def test_tail_once_shows_the_newest(cli: Cli, bus: Bus, events: str) -> None:
    """-n says how many; --json prints an object each."""
    for number in range(3):
        await bus.send(events, number, key="k", headers={"h": "v"})

    shown = await cli.quick("tail", events, "-n", "2", "--once", "--json")

    assert [(one["payload"], one["headers"]) for one in shown.done().lines] == [(1, {"h": "v"}), (2, {"h": "v"})]
    assert shown.lines[0].keys().isdisjoint(("txid", "topic_id", "sequence", "segment_count")), "nobody needs these"


# Dead letters


async def test_dead_letters_name_their_group(cli: Cli, bus: Bus, events: str) -> None:
    """`show` needs the group if several have the dead letter."""
    (message_id,) = await bury(bus, 1, groups=("mail", "stock"))

    listed = await cli.quick("dead-letters", "list")
    of_group = await cli.quick("dead-letters", "list", events, "--group", "stock", "--json")
    which = await cli.quick("dead-letters", "show", str(message_id))
    shown = await cli.quick("dead-letters", "show", str(message_id), "--group", "stock")

    heading, *rows = listed.done().out.splitlines()
    assert heading.split()[:4] == ["id", "topic", "group", "died"]
    assert [row.split()[:3] for row in rows] == [[str(message_id), events, group] for group in ("mail", "stock")]
    assert [one["group_name"] for one in of_group.done().json] == ["stock"]
    assert "--group NAME" in which.failed(4).err
    assert "group         stock\n" in shown.done().out
    assert "priority" not in shown.out, "groups have none"


async def test_redrive_goes_to_one_group(cli: Cli, bus: Bus, events: str) -> None:
    """Dead letters of other groups stay."""
    first, _ = await bury(bus, 1, 2, groups=("mail", "stock"))

    would = await cli.quick("dead-letters", "redrive", events, "--all", "--group", "mail", "--dry-run", "--json")
    did = await cli.quick("dead-letters", "redrive", events, str(first), "--group", "mail")
    rest = await cli.quick("dead-letters", "redrive", events, "--reason-like", "no 2", "--group", "mail")

    assert would.done().json == {"topic": events, "group": "mail", "count": 2, "dry_run": True}
    assert did.done().out == "redrove 1 dead letter of mail on events\n"
    assert rest.done().out == "redrove 1 dead letter of mail on events\n"
    assert [one.group_name for one in await bus.admin.dead_letters()] == ["stock", "stock"]


async def test_purge_deletes_for_one_group(cli: Cli, bus: Bus, events: str) -> None:
    """Dead letters of other groups stay. A dry run only counts."""
    first, _ = await bury(bus, 1, 2, groups=("mail", "stock"))

    would = await cli.quick("dead-letters", "purge", events, "--all", "--group", "mail", "--dry-run", "--json")
    one = await cli.quick("dead-letters", "purge", events, str(first), "--group", "mail")
    rest = await cli.quick("dead-letters", "purge", events, "--all", "--group", "mail")

    assert would.done().json == {"topic": events, "group": "mail", "count": 2, "dry_run": True}
    assert one.done().out == "deleted 1 dead letter of mail on events\n"
    assert rest.done().out == "deleted 1 dead letter of mail on events\n"
    assert [one.group_name for one in await bus.admin.dead_letters()] == ["stock", "stock"]


# A restored database


async def test_restored_database_needs_a_rebase(cli: Cli, bus: Bus, conn: Any, events: str) -> None:
    """The doctor warns, consuming is refused with exit code 6, and `rebase` makes it work again."""
    await bus.send(events, 1, key="k")
    await conn.execute("update postbus.cluster set identifier = identifier + 1")

    examined = await cli.quick("doctor", "--json")
    refused = await cli("consume", events, "--group", "mail", "--max", "1")
    unconfirmed = await cli("rebase", given="n\n")
    rebased = await cli("rebase", given="y\n")
    consumed = await cli("consume", events, "--group", "mail", "--max", "1", "--json")

    (warning,) = [one for one in examined.done().json["checks"] if one["check"] == "restored"]
    assert warning["level"] == "warning"
    assert "run: postbus rebase; for a copy" in warning["remedy"]
    assert "remedy: run: postbus rebase" in refused.failed(6).err
    assert "nothing was done" in unconfirmed.failed(4).err
    source = await conn.fetchval("select postbus.source()")
    assert rebased.done().out == f"rebased 4 cursors; messages have the same source, {source}\n"
    assert [one["payload"] for one in consumed.done().lines] == [1]


async def test_rebase_with_yes_does_not_ask(cli: Cli, conn: Any, events: str) -> None:
    """--json prints the number of cursors and the source, which a copy gets anew."""
    before = str(await conn.fetchval("select postbus.source()"))
    assert (await cli.quick("rebase", "--yes", "--json")).done().json == {"cursors": 4, "source": before}
    told = (await cli.quick("rebase", "--as-copy", "--yes", "--json")).done().json
    assert told == {"cursors": 4, "source": str(await conn.fetchval("select postbus.source()"))}
    assert told["source"] != before


async def test_doctor_reports_groups(cli: Cli, bus: Bus, conn: Any, events: str) -> None:
    """Dead, paused and idle groups, and those with losses, are reported with a remedy each."""
    await (await bus.connect()).subscribe(events, "dead", Start.NOW, "block")
    await bus.send(events, 1)
    await bus.admin.pause_group(events, "stock")
    await conn.execute("update postbus.subscription set state = 'DEAD' where group_name = 'dead'")
    await conn.execute(
        "insert into postbus.loss (subscription_id, reason, messages) "
        "select id, 'test', 5 from postbus.subscription where group_name = 'dead'"
    )

    await conn.execute("update postbus.subscription set seen_at = seen_at - interval '40 s' where group_name = 'mail'")

    found = [one for one in (await cli.quick("doctor", "--json")).done().json["checks"] if one["check"] == "groups"]

    assert [(one["level"], one["text"].split(", the last")[0]) for one in found] == [
        ("warning", "dead on events: it is DEAD: nobody works for it, and messages are kept for dead_retention only"),
        ("warning", "dead on events: it lost 5 messages, which were dropped before it had them"),
        ("warning", "mail on events: nobody works for it, and it has 1 message before it"),
        ("info", "stock on events: it is paused, with 1 message before it"),
    ]
    assert all(one["remedy"] for one in found)
