"""The oracle of the fault driver: what it must notice, and what it must accept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from faults import journal
from faults.journal import (
    AnyRecord,
    Disruption,
    HandlerBegan,
    HandlerEnded,
    Journal,
    PublishAttempt,
    SettlementAccepted,
    TransactionCommitted,
    TransactionFailed,
)
from faults.modes import MODES
from faults.oracle import Facts, GroupMessage, RunRecords, judge


def tried(n: int, transaction: str = "a.1", *, mode: str = "queue", is_poison: bool = False) -> PublishAttempt:
    return PublishAttempt(mode, "k", n, transaction, is_poison)


def handled(n: int, *, at: int = 10, pid: int = 1, mode: str = "queue", group: str = "") -> list[AnyRecord]:
    return [HandlerBegan(mode, group, "k", n, pid, at), HandlerEnded(mode, group, "k", n, pid, at + 5)]


def checks(records: list[AnyRecord], facts: Facts | None = None) -> list[str]:
    """Return the names of the findings."""
    return [one.check for one in judge(RunRecords(records, list(MODES.values())), facts or Facts())]


def test_handled_commits_are_accepted() -> None:
    """There is nothing to find."""
    assert checks([tried(1), TransactionCommitted("a.1"), *handled(1)]) == []


def test_committed_message_without_handling_is_lost() -> None:
    """Every committed message has to be handled."""
    assert checks([tried(1), TransactionCommitted("a.1")]) == ["LOST"]


def test_each_group_must_handle_the_message() -> None:
    """A message handled by one group is lost if another group did not handle it."""
    of_one = handled(1, mode="log", group="quick")
    assert checks([tried(1, mode="log"), TransactionCommitted("a.1"), *of_one]) == ["LOST"]
    assert (
        checks([tried(1, mode="log"), TransactionCommitted("a.1"), *of_one, *handled(1, mode="log", group="slow")])
        == []
    )


def test_begun_handler_is_not_enough() -> None:
    """Only the handler's effect counts."""
    assert checks([tried(1), TransactionCommitted("a.1"), handled(1)[0]]) == ["LOST"]


def test_unknown_outcome_may_go_both_ways() -> None:
    """Without an answer to COMMIT the message may exist or not."""
    assert checks([tried(1)]) == []
    assert checks([tried(1), *handled(1)]) == []


@pytest.mark.parametrize("known", [[], [tried(1), TransactionFailed("a.1")]], ids=["never tried", "rolled back"])
def test_handled_message_that_was_never_published_is_a_phantom(known: list[AnyRecord]) -> None:
    """A handled message must have been published in a transaction that was not rolled back."""
    assert "PHANTOM" in checks([*known, *handled(1)])


def test_transaction_is_handled_as_a_whole() -> None:
    """This holds although its commit is unknown."""
    assert checks([tried(1), tried(2), *handled(1)]) == ["ATOMIC"]
    assert checks([tried(1), tried(2), *handled(1), *handled(2)]) == []


def test_duplicate_needs_an_excuse() -> None:
    """Only a fault of an excusing kind between the two times is one."""
    twice = [tried(1), TransactionCommitted("a.1"), *handled(1, at=10), *handled(1, at=50, pid=2)]
    assert checks(twice) == ["DUPLICATE"]
    assert checks([*twice, Disruption("kill", 20, 30, excuses=True)]) == []
    assert checks([*twice, Disruption("restart", 20, 30, excuses=False)]) == ["DUPLICATE"]
    assert checks([*twice, Disruption("kill", 60, 70, excuses=True)]) == ["DUPLICATE"], "that was afterwards"


def test_retry_is_no_duplicate() -> None:
    """A handler that began and did not end had no effect."""
    assert checks([tried(1), TransactionCommitted("a.1"), HandlerBegan("queue", "", "k", 1, 1, 5), *handled(1)]) == []


@pytest.mark.parametrize("mode", ["transactional", "inbox"])
def test_effect_happens_once(mode: str) -> None:
    """In these modes the database says whether it happened, and not the handler."""
    place = GroupMessage(mode, "", "k", 1)
    records = [tried(1, mode=mode), TransactionCommitted("a.1"), *handled(1, mode=mode)]
    assert checks(records, Facts(effects=Counter({place: 1}))) == []
    assert checks(records, Facts(effects=Counter({place: 2}))) == ["EFFECT"]
    assert checks(records) == ["LOST"], "the handler has ended, and its transaction has not"


def test_order_is_kept_per_key() -> None:
    """A message begins when the one before it has ended."""
    both: list[AnyRecord] = [
        tried(1, "a.1", mode="ordered"),
        tried(2, "a.2", mode="ordered"),
        TransactionCommitted("a.1"),
        TransactionCommitted("a.2"),
    ]
    assert checks([*both, *handled(1, at=10, mode="ordered"), *handled(2, at=20, mode="ordered")]) == []
    assert checks([*both, *handled(1, at=10, mode="ordered"), *handled(2, at=12, mode="ordered")]) == ["ORDER"]
    assert checks([*both, *handled(2, at=10, mode="ordered"), *handled(1, at=20, mode="ordered")]) == ["ORDER"]


def test_unordered_queues_have_no_order_to_break() -> None:
    """Handling out of order is accepted there."""
    both: list[AnyRecord] = [tried(1, "a.1"), tried(2, "a.2"), TransactionCommitted("a.1"), TransactionCommitted("a.2")]
    assert checks([*both, *handled(2, at=10), *handled(1, at=20)]) == []


def test_two_settlements_of_one_message_are_found() -> None:
    """The database must not have accepted both."""
    records = [tried(1), TransactionCommitted("a.1"), *handled(1), SettlementAccepted("faults.queue", "7", 1, "x")]
    assert checks(records) == []
    assert checks([*records, SettlementAccepted("faults.queue", "7", 2, "y")]) == ["FENCE"]


def test_database_facts_are_checked() -> None:
    """Early drops and missing receipts are found by querying the database."""
    records = [tried(1), TransactionCommitted("a.1"), *handled(1)]
    assert checks(records, Facts(lost_by_retention={"log": 3})) == ["RETAIN"]
    assert checks(records, Facts(not_completed={"receipts": 2})) == ["RECEIPT"]


def test_only_poison_may_be_given_up() -> None:
    """Any other dead letter counts as lost."""
    dead = Facts(dead={GroupMessage("queue", "", "k", 1)})
    assert checks([tried(1, is_poison=True), TransactionCommitted("a.1")], dead) == []
    assert checks([tried(1), TransactionCommitted("a.1")], dead) == ["LOST", "DEAD"]


def test_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Only the record that was cut off is missing."""
    records: list[AnyRecord] = [
        tried(1),
        TransactionCommitted("a.1"),
        *handled(1),
        Disruption("kill", 1, 2, excuses=True),
    ]
    with Journal(tmp_path / "one.journal") as own:
        own.note(*records)
    with (tmp_path / "one.journal").open("ab") as file:
        file.write(b'["Try","queue"')  # killed in the middle
    assert journal.read(tmp_path) == records
