"""postbus dead-letters …"""

from __future__ import annotations

import pytest

from cli.helpers import Cli
from postbus import Bus
from postbus._db.store import Store


async def bury(bus: Bus, payload: object, *, reason: str = "broken", key: str | None = None) -> int:
    """Make a dead letter. Returns its id."""
    store: Store = await bus.connect()
    message_id = await bus.send("jobs", payload, key=key, headers={"tenant": "acme"})
    claim = await store.claim("jobs", member="test", max_count=1)
    assert claim.token is not None
    await store.dead_letter(claim.token, [message_id], reason, "Traceback …\nValueError: no")
    return message_id


async def test_list_shows_a_line_per_dead_letter(cli: Cli, bus: Bus) -> None:
    """The line ends with the last line of the error."""
    message_id = await bury(bus, 1, key="k")

    everything = await cli("dead-letters", "list")
    of_the_topic = await cli.quick("dead-letters", "list", "jobs", "--json")

    header, line = everything.done().out.splitlines()
    assert header.split() == ["id", "topic", "died", "attempts", "key", "reason"]
    assert line.split()[0] == str(message_id)
    assert line.endswith("k    broken: ValueError: no")
    (one,) = of_the_topic.done().json
    assert (one["id"], one["payload"], one["headers"]) == (message_id, 1, {"tenant": "acme"})


async def test_list_is_paged(cli: Cli, bus: Bus) -> None:
    """A list that was cut says how to continue."""
    ids = [await bury(bus, number) for number in range(3)]

    first = await cli.quick("dead-letters", "list", "--limit", "2")
    second = await cli.quick("dead-letters", "list", "--after-id", str(ids[1]), "--json")

    assert f"--after-id {ids[1]}" in first.done().err
    assert [one["id"] for one in second.done().json] == [ids[2]]


async def test_show_prints_payload_and_error(cli: Cli, bus: Bus) -> None:
    """It prints the indented payload, the headers, the reason and the last error."""
    message_id = await bury(bus, {"order": {"id": 7}}, reason="no such customer")

    shown = (await cli("dead-letters", "show", str(message_id))).done().out

    assert '\npayload\n  {\n    "order": {\n      "id": 7\n' in shown
    facts = [line.split(maxsplit=1) for line in shown.splitlines()]
    assert ["reason", "no such customer"] in facts
    assert ["header", "tenant  acme"] in facts
    assert "\nlast error\n  Traceback …\n  ValueError: no\n" in shown


async def test_show_prints_one_json_object(cli: Cli, bus: Bus) -> None:
    """The object has all fields."""
    message_id = await bury(bus, b"\x00\xff")

    shown = (await cli.quick("dead-letters", "show", str(message_id), "--json")).done().json

    assert (shown["payload_base64"], shown["reason"]) == ("AP8=", "broken")
    assert shown["last_error"].endswith("ValueError: no")


async def test_redrive_by_id_works_once(cli: Cli, bus: Bus) -> None:
    """The named dead letters are back in the topic, and cannot be put back again."""
    first, second = await bury(bus, 1), await bury(bus, 2)

    redriven = await cli("dead-letters", "redrive", "jobs", str(first))
    again = await cli.quick("dead-letters", "redrive", "jobs", str(first))

    assert redriven.done().out == "redrove 1 dead letter of jobs\n"
    assert f"no dead letter {first} in topic 'jobs'" in again.failed(3).err
    assert {row.id: row.state for row in await bus.admin.messages("jobs")} == {
        first: "waiting",
        second: "dead",
    }


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ("--all", 3),
        ("--all --max 2", 2),
        ("--all --rate 0.1", 3),
        ("--reason-like brok%", 2),
        ("--key k", 1),
        ("--after 1h", 3),
        ("--before 1h", 0),
        ("--before 2100-01-01 --after 2000-01-01", 3),
    ],
)
async def test_redrive_can_be_filtered(cli: Cli, bus: Bus, filters: str, count: int) -> None:
    """Filters select what is put back, and a dry run only counts."""
    for reason, key in (("broken", None), ("broken", "k"), ("other", None)):
        await bury(bus, 1, reason=reason, key=key)

    would = await cli.quick("dead-letters", "redrive", "jobs", *filters.split(), "--dry-run", "--json")
    unchanged = (await bus.admin.topic("jobs")).dead
    did = await cli.quick("dead-letters", "redrive", "jobs", *filters.split())

    assert would.done().json == {"topic": "jobs", "count": count, "dry_run": True}
    assert unchanged == 3
    assert did.done().out.startswith(f"redrove {count} ")
    assert (await bus.admin.topic("jobs")).dead == 3 - count


async def test_purge_deletes_dead_letters(cli: Cli, bus: Bus) -> None:
    """A dry run only counts."""
    first, _ = await bury(bus, 1), await bury(bus, 2)

    would = await cli.quick("dead-letters", "purge", "jobs", "--all", "--dry-run")
    one = await cli.quick("dead-letters", "purge", "jobs", str(first))
    rest = await cli.quick("dead-letters", "purge", "jobs", "--before", "0s", "--json")

    assert would.done().out == "would delete 2 dead letters of jobs\n"
    assert one.done().out == "deleted 1 dead letter of jobs\n"
    assert rest.done().json["count"] == 1
    assert await bus.admin.dead_letters() == []


MISTAKES = [
    ("redrive jobs", 2, "which dead letters?"),
    ("purge jobs", 2, "which dead letters?"),
    ("redrive jobs --all --key k", 2, "--all is given together with"),
    ("redrive jobs seven", 2, "ID"),
    ("redrive jobs 99999999999999999999", 2, "ID"),
    ("redrive jobs 7", 3, "no dead letter 7"),
    ("redrive gone --all", 3, "there is no topic 'gone'"),
    ("redrive jobs --all --rate 0", 4, "rate 0 is not positive"),
    ("redrive jobs --before someday", 4, "--before 'someday' is not a point in time"),
    ("purge jobs 7", 3, "no dead letter 7"),
    ("list gone", 3, "there is no topic 'gone'"),
    ("list --limit 0", 2, "--limit"),
    ("show 7", 3, "there is no dead letter 7"),
]


async def test_dead_letter_mistakes_are_reported(cli: Cli, bus: Bus) -> None:
    """A missing or ambiguous argument is refused with the reason."""
    await bus.admin.create_topic("jobs")
    for args, code, told in MISTAKES:
        failed = await cli.quick("dead-letters", *args.split())

        assert told in failed.failed(code).err
