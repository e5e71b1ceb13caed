"""The oracle of the fault driver: what it must notice, and what it must not mind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from faults import journal
from faults.journal import AnyRecord, Begin, Done, End, Failed, Hurt, Journal, Settled, Try
from faults.modes import MODES
from faults.oracle import Facts, Place, Story, judge


def tried(n: int, transaction: str = "a.1", *, mode: str = "queue", is_poison: bool = False) -> Try:
    return Try(mode, "k", n, transaction, is_poison)


def handled(n: int, *, at: int = 10, pid: int = 1, mode: str = "queue", group: str = "") -> list[AnyRecord]:
    return [Begin(mode, group, "k", n, pid, at), End(mode, group, "k", n, pid, at + 5)]


def checks(records: list[AnyRecord], facts: Facts | None = None) -> list[str]:
    """The names of what was found."""
    return [one.check for one in judge(Story(records, list(MODES.values())), facts or Facts())]


def test_what_is_committed_and_handled_is_fine() -> None:
    """There is nothing to find."""
    assert checks([tried(1), Done("a.1"), *handled(1)]) == []


def test_lost() -> None:
    """What is committed has to be handled."""
    assert checks([tried(1), Done("a.1")]) == ["LOST"]


def test_each_group_must_have_it() -> None:
    """What one group has had is lost if another one has not."""
    of_one = handled(1, mode="log", group="quick")
    assert checks([tried(1, mode="log"), Done("a.1"), *of_one]) == ["LOST"]
    assert checks([tried(1, mode="log"), Done("a.1"), *of_one, *handled(1, mode="log", group="slow")]) == []


def test_a_begun_handler_is_not_enough() -> None:
    """Its effect counts."""
    assert checks([tried(1), Done("a.1"), handled(1)[0]]) == ["LOST"]


def test_an_unknown_outcome_may_go_both_ways() -> None:
    """Who got no answer to COMMIT knows neither that it is there nor that it is not."""
    assert checks([tried(1)]) == []
    assert checks([tried(1), *handled(1)]) == []


@pytest.mark.parametrize("known", [[], [tried(1), Failed("a.1")]], ids=["never tried", "rolled back"])
def test_phantom(known: list[AnyRecord]) -> None:
    """What was handled must have been published, in a transaction that was not rolled back."""
    assert "PHANTOM" in checks([*known, *handled(1)])


def test_a_transaction_comes_as_a_whole() -> None:
    """Also where nobody knows whether it was committed."""
    assert checks([tried(1), tried(2), *handled(1)]) == ["ATOMIC"]
    assert checks([tried(1), tried(2), *handled(1), *handled(2)]) == []


def test_a_duplicate_needs_a_reason() -> None:
    """A fault between the first time and the second is one, if it is of a kind that excuses it."""
    twice = [tried(1), Done("a.1"), *handled(1, at=10), *handled(1, at=50, pid=2)]
    assert checks(twice) == ["DUPLICATE"]
    assert checks([*twice, Hurt("kill", 20, 30, excuses=True)]) == []
    assert checks([*twice, Hurt("restart", 20, 30, excuses=False)]) == ["DUPLICATE"]
    assert checks([*twice, Hurt("kill", 60, 70, excuses=True)]) == ["DUPLICATE"], "that was afterwards"


def test_a_retry_is_no_duplicate() -> None:
    """A handler that has begun and not ended had no effect."""
    assert checks([tried(1), Done("a.1"), Begin("queue", "", "k", 1, 1, 5), *handled(1)]) == []


@pytest.mark.parametrize("mode", ["transactional", "inbox"])
def test_an_effect_happens_once(mode: str) -> None:
    """In such a mode the database says whether it did, and not the handler."""
    place = Place(mode, "", "k", 1)
    records = [tried(1, mode=mode), Done("a.1"), *handled(1, mode=mode)]
    assert checks(records, Facts(effects=Counter({place: 1}))) == []
    assert checks(records, Facts(effects=Counter({place: 2}))) == ["EFFECT"]
    assert checks(records) == ["LOST"], "the handler has ended, and its transaction has not"


def test_order_is_that_of_the_key() -> None:
    """The next one begins when the one before has ended."""
    both: list[AnyRecord] = [tried(1, "a.1", mode="ordered"), tried(2, "a.2", mode="ordered"), Done("a.1"), Done("a.2")]
    assert checks([*both, *handled(1, at=10, mode="ordered"), *handled(2, at=20, mode="ordered")]) == []
    assert checks([*both, *handled(1, at=10, mode="ordered"), *handled(2, at=12, mode="ordered")]) == ["ORDER"]
    assert checks([*both, *handled(2, at=10, mode="ordered"), *handled(1, at=20, mode="ordered")]) == ["ORDER"]


def test_queues_without_order_have_none() -> None:
    """What is not promised is not missed."""
    both: list[AnyRecord] = [tried(1, "a.1"), tried(2, "a.2"), Done("a.1"), Done("a.2")]
    assert checks([*both, *handled(2, at=10), *handled(1, at=20)]) == []


def test_two_settlements_of_one_message() -> None:
    """The database must not have accepted both."""
    records = [tried(1), Done("a.1"), *handled(1), Settled("faults.queue", "7", 1, "x")]
    assert checks(records) == []
    assert checks([*records, Settled("faults.queue", "7", 2, "y")]) == ["FENCE"]


def test_what_the_database_admits() -> None:
    """What was dropped early, or has no receipts, is found by asking it."""
    records = [tried(1), Done("a.1"), *handled(1)]
    assert checks(records, Facts(lost_by_retention={"log": 3})) == ["RETAIN"]
    assert checks(records, Facts(not_completed={"receipts": 2})) == ["RECEIPT"]


def test_only_poison_may_be_given_up() -> None:
    """Anything else that is dead has been lost."""
    dead = Facts(dead={Place("queue", "", "k", 1)})
    assert checks([tried(1, is_poison=True), Done("a.1")], dead) == []
    assert checks([tried(1), Done("a.1")], dead) == ["LOST", "DEAD"]


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All records but the one that was cut off."""
    records: list[AnyRecord] = [tried(1), Done("a.1"), *handled(1), Hurt("kill", 1, 2, excuses=True)]
    with Journal(tmp_path / "one.journal") as own:
        own.note(*records)
    with (tmp_path / "one.journal").open("ab") as file:
        file.write(b'["Try","queue"')  # killed in the middle
    assert journal.read(tmp_path) == records
