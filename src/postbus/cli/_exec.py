"""A command per message, whose exit code is the outcome."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from typing import TextIO

from postbus._runtime.visible_text import last_line, visible
from postbus.cli._render import write_json
from postbus.message import Ack, DeadLetter, Message, Outcome, Retry

_DATA_ERROR = 65  # EX_DATAERR of sysexits.h
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # what shells say
_KEPT = 4000  # characters of stderr


class CommandMissing(Exception):
    """The command cannot be run, so no message can be handled."""


class Executor:
    """Runs a shell command for each message."""

    def __init__(self, command: str, as_json: bool) -> None:
        self._command = command
        self._as_json = as_json

    async def run(self, message: Message) -> Outcome:
        process = await asyncio.create_subprocess_shell(
            self._command,
            stdin=asyncio.subprocess.PIPE,
            # On a terminal we write the output ourselves: it may contain messages that control the terminal.
            stdout=asyncio.subprocess.PIPE if self._as_json or sys.stdout.isatty() else None,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | _environment(message),
            start_new_session=True,  # Ctrl-C is for us: the command finishes
        )
        try:
            output, complaints = await process.communicate(message.payload)
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        _pass_on(complaints, sys.stderr)
        if not self._as_json:
            _pass_on(output or b"", sys.stdout)
        assert process.returncode is not None
        error = complaints.decode("utf-8", "replace")[-_KEPT:]
        outcome = self._outcome(process.returncode, error)
        if self._as_json:
            _report(message, process.returncode, outcome, output or b"", error)
        return outcome

    def _outcome(self, code: int, error: str) -> Outcome:
        if code == 0:
            return Ack()
        told = _ended(code)
        if code in (_NOT_EXECUTABLE, _NOT_FOUND):
            raise CommandMissing(f"the command cannot be run ({told}): {self._command}")
        if code == _DATA_ERROR:
            return DeadLetter(reason=last_line(error) or f"the command {told}", error=error)
        return Retry(error=f"{error.rstrip()}\nthe command {told}".strip())


def _pass_on(written: bytes, to: TextIO) -> None:
    """Write a command's output unchanged; on a terminal, escape what the terminal would obey."""
    if not to.isatty():
        to.buffer.write(written)
    elif written:
        lines = written.decode("utf-8", "replace").expandtabs().split("\n")
        to.write("\n".join(map(visible, lines)))
    to.flush()


def _ended(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def _environment(message: Message) -> dict[str, str]:
    return {
        "POSTBUS_ID": str(message.id),
        "POSTBUS_EVENT_ID": message.event_id,
        "POSTBUS_TOPIC": message.topic,
        "POSTBUS_KEY": message.key or "",
        "POSTBUS_ATTEMPT": str(message.attempt),
        "POSTBUS_HEADERS": json.dumps(dict(message.headers)),
    }


def _report(message: Message, code: int, outcome: Outcome, output: bytes, error: str) -> None:
    write_json(
        {
            "id": message.id,
            "event_id": message.event_id,
            "topic": message.topic,
            "attempt": message.attempt,
            "exit_code": code,
            "outcome": {Ack: "acked", Retry: "retried", DeadLetter: "dead"}[type(outcome)],
            "stdout": output.decode("utf-8", "replace"),
            "stderr": error,
        }
    )
