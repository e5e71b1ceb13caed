"""Errors of the driver: which of them may mean that the server has crashed."""

from __future__ import annotations

import asyncpg
import pytest

from postbus._db.error_map import may_have_crashed, translate
from postbus.errors import AccessDenied, DatabaseUnavailable


def _error(sqlstate: str, *, wrapped: bool) -> DatabaseUnavailable:
    told: BaseException = asyncpg.PostgresError.new({"C": sqlstate, "M": "terminating connection", "S": "FATAL"})
    if wrapped:  # as asyncpg does when the connection ends during a statement
        told, cause = asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"), told
        told.__cause__ = cause
    translated = translate(told)
    assert isinstance(translated, DatabaseUnavailable), translated
    translated.__cause__ = told
    return translated


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("sqlstate", ["57P05", "57P01", "25P03", "25P04", "57014", "53300", "40001"])
def test_orderly_end_is_no_crash(sqlstate: str, wrapped: bool) -> None:
    """The server is well: it ended a session, or refused something for the moment."""
    assert not may_have_crashed(_error(sqlstate, wrapped=wrapped))


@pytest.mark.parametrize("sqlstate", ["57P02", "57P03", "58030", "08006"])
def test_crash_is_suspected(sqlstate: str) -> None:
    """The server reports a crash, or that it is starting."""
    assert may_have_crashed(_error(sqlstate, wrapped=False))


@pytest.mark.parametrize(
    ("sqlstate", "remedy"),
    [
        ("40001", "try again; workers do so automatically"),
        ("53300", "raise max_connections, and try again"),
        ("53100", "free space on the server's disk"),
        ("25006", "standbys are read-only"),
    ],
)
def test_remedy_of_a_single_call_says_what_to_do(sqlstate: str, remedy: str) -> None:
    """Nobody repeats the call: its caller has to, and sometimes has to do something first."""
    assert remedy in _error(sqlstate, wrapped=False).remedy


@pytest.mark.parametrize(("sqlstate", "remedy"), [("42501", "postbus_producer"), ("28P01", "the password of the DSN")])
def test_refused_user_learns_what_is_missing(sqlstate: str, remedy: str) -> None:
    """A right is granted by a role, and a user that is not let in needs another DSN."""
    told = translate(asyncpg.PostgresError.new({"C": sqlstate, "M": "no", "S": "FATAL"}))

    assert isinstance(told, AccessDenied)
    assert remedy in told.remedy
