"""How a command ends: exit codes, and errors as people and as programs read them."""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import textwrap
import traceback

import asyncpg

from postbus._db.error_map import translate
from postbus._runtime.visible_text import visible, visible_lines
from postbus.errors import (
    AccessDenied,
    DatabaseUnavailable,
    EmbeddedError,
    GroupNotFound,
    InvalidInput,
    LeaseLost,
    MessageNotFound,
    PostbusError,
    SchemaError,
    TokenNotFound,
    TopicNotFound,
)

OK, FAILED, USAGE, NOT_FOUND, REFUSED, NO_DATABASE, WRONG_SCHEMA, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130

EXIT_CODES = {
    OK: "ok",
    FAILED: "error",
    USAGE: "wrong usage",
    NOT_FOUND: "topic, group, message or token not found",
    REFUSED: "refused, invalid input, or a lost lease",
    NO_DATABASE: "the database is away, or access was denied",
    WRONG_SCHEMA: "the schema is missing, too old, too new, or was restored from a dump",
    INTERRUPTED: "interrupted",
}

_BY_ERROR: tuple[tuple[type[PostbusError], int], ...] = (
    (TopicNotFound, NOT_FOUND),
    (GroupNotFound, NOT_FOUND),
    (MessageNotFound, NOT_FOUND),
    (TokenNotFound, NOT_FOUND),
    (InvalidInput, REFUSED),
    (LeaseLost, REFUSED),
    (AccessDenied, NO_DATABASE),
    (DatabaseUnavailable, NO_DATABASE),
    (EmbeddedError, NO_DATABASE),
    (SchemaError, WRONG_SCHEMA),
)


class CommandError(Exception):
    """Errors that only the command line can cause."""

    def __init__(self, message: str, *, remedy: str = "", code: str = "failed", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
        self.exit_code = exit_code


def usage_error(message: str, *, remedy: str = "") -> CommandError:
    return CommandError(message, remedy=remedy, code="usage", exit_code=USAGE)


def refusal(message: str, *, remedy: str = "") -> CommandError:
    return CommandError(message, remedy=remedy, code=InvalidInput.code, exit_code=REFUSED)


def exit_code_of(error: PostbusError) -> int:
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILED)


def report(error: BaseException, *, as_json: bool) -> int:
    """Report an error on stderr, without a traceback. Returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError) and _nobody_reads_stdout():
        leave_pipe()
        return OK
    if isinstance(error, ConnectionError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        error = translate(error) or error  # left from closing a connection that broke
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        error = CommandError(f"cannot write: {error.strerror}", remedy="free some space, or write elsewhere")
    if isinstance(error, CommandError):
        tell(error.code, error.message, error.remedy, as_json=as_json)
        return error.exit_code
    if isinstance(error, PostbusError):
        message, log = _parted(error)
        tell(error.code, message, error.remedy, as_json=as_json, log=log)
        return exit_code_of(error)
    if isinstance(error, asyncpg.PostgresError):
        message = getattr(error, "message", None) or str(error)
        tell(error.sqlstate or "database", f"the database refused: {message}", error.hint or "", as_json=as_json)
        return FAILED
    if os.environ.get("POSTBUS_DEBUG"):
        for line in visible_lines("".join(traceback.format_exception(error))):
            print(f"    {line}", file=sys.stderr)
    last_line = traceback.format_exception_only(error)[-1].strip()
    tell("unexpected", last_line, "set POSTBUS_DEBUG=1 to see where it happened, and report it", as_json=as_json)
    return FAILED


def tell(code: str, message: str, remedy: str, *, as_json: bool, log: str = "") -> None:
    """Write an error on stderr: a line for it, the log that it comes with, indented, and a line for the remedy."""
    if as_json:
        whole = f"{message}\n{log}" if log else message
        print(json.dumps({"error": {"code": code, "message": whole, "remedy": remedy}}), file=sys.stderr)
        return
    print(f"error: {visible(message.rstrip())}", file=sys.stderr)
    for line in visible_lines(log) if log else ():
        print(f"    {line}", file=sys.stderr)
    if remedy:
        print(f"remedy: {visible(remedy)}", file=sys.stderr)


def _parted(error: PostbusError) -> tuple[str, str]:
    """The message, and the last lines of the server's log, which errors of the embedded server may contain."""
    if not isinstance(error, EmbeddedError):
        return error.message, ""
    message, _, log = error.message.partition("\n")
    return message, textwrap.dedent(log)


def _nobody_reads_stdout() -> bool:
    look = select.poll()
    look.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in look.poll(0))


def leave_pipe() -> None:
    """Write nothing more, because the reader of our output is gone, not even when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
