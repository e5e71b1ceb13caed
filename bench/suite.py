"""Running several scenarios one after the other, each in a process of its own, and reporting on all of them."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bench.paper import words
from bench.paper.write import PAGE, read, write
from bench.run import SCENARIOS

ROOT = Path(__file__).parent.parent
FOLDER = Path("build/bench")
MINUTES = 30.0
_LOOK = 0.5  # seconds
_PATIENCE = 30.0  # seconds for a scenario to clean up


@dataclass(frozen=True)
class Outcome:
    """How a scenario ended."""

    name: str
    code: int | None
    """0: all checks hold; 1: some do not; others: it failed; None: no time was left."""
    seconds: float

    @property
    def word(self) -> str:
        if self.code is None:
            return "no time left"
        return {0: "ok", 1: "missed a goal"}.get(self.code, "failed")


def run_all(
    names: Sequence[str],
    *,
    folder: Path = FOLDER,
    size: str | None = "--short",
    dsn: str | None = None,
    minutes: float | None = MINUTES,
    out: TextIO | None = None,
) -> int:
    """Run scenarios and write NAME.json, NAME.log, REPORT.md and charts. Returns the exit code: 0 if all checks hold.

    All of them get the option `size`. After `minutes`, the running scenario is ended and the others are not run:
    both count as failed.
    """
    show = _Show(out or sys.stdout)
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    read(folder)  # refuses other JSON files now rather than in half an hour
    ends_at = None if minutes is None else time.monotonic() + 60 * minutes
    outcomes = []
    for number, name in enumerate(names, 1):
        options = [*([size] if size else []), *(["--dsn", dsn] if dsn else [])]
        outcomes.append(_run(name, options, folder, ends_at, show, f"[{number:2}/{len(names)}] {name:20}"))
    write(folder, order=list(names))
    show.table(read(folder), outcomes, order=list(names))
    show.line(f"{folder / PAGE}: all figures, with charts")
    return 0 if all(one.code == 0 for one in outcomes) else 1


def _clear(folder: Path) -> None:
    """Remove the files of former runs, and nothing else."""
    for name in SCENARIOS:
        for old in (folder / f"{name}.json", folder / f"{name}.log", *folder.glob(f"{name}-*.svg")):
            old.unlink(missing_ok=True)


def _run(name: str, options: list[str], folder: Path, ends_at: float | None, show: _Show, label: str) -> Outcome:
    """Run one scenario, in a process that ends in any case."""
    began = time.monotonic()
    log, unfinished = folder / f"{name}.log", folder / f"{name}.json.part"
    if ends_at is not None and began >= ends_at:
        log.write_text("not run: no time left\n", "utf-8")
        show.line(f"{label} no time left")
        return Outcome(name, None, 0.0)
    command = [sys.executable, "-m", "bench", name, "--json", "--tell-parts", *options]
    with unfinished.open("w") as answer, log.open("w") as told:
        told.write(f"python {shlex.join(command[1:])}\n")
        told.flush()
        process = subprocess.Popen(command, stdout=answer, stderr=told, stdin=subprocess.DEVNULL, cwd=ROOT)
        is_late = False
        try:
            while process.poll() is None:
                show.now(label, f"{_duration(time.monotonic() - began)}  {_last_line(log)}")
                if ends_at is not None and time.monotonic() >= ends_at:
                    raise TimeoutError
                _wait(process, _LOOK)
        except TimeoutError:
            is_late = True
            _end(process)
            told.write("ended: no time left\n")
        except BaseException:
            _end(process)
            raise
    # Without a report in time it failed, whatever its exit code says.
    is_complete = unfinished.stat().st_size > 0 and not is_late
    code = process.returncode if is_complete else max(abs(process.returncode), 2)
    if code in (0, 1):
        unfinished.rename(folder / f"{name}.json")
    else:
        unfinished.unlink()
    outcome = Outcome(name, code, time.monotonic() - began)
    show.line(f"{label} {_duration(outcome.seconds)}  {outcome.word}")
    return outcome


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it as with Ctrl-C, so that it removes its server and its databases."""
    process.send_signal(signal.SIGINT)
    _wait(process, _PATIENCE)
    process.kill()
    process.wait()


def _last_line(log: Path) -> str:
    """The current part. The first line of the log is the command."""
    lines = log.read_text("utf-8", "replace").splitlines()
    return lines[-1] if len(lines) > 1 else "starting"


def _duration(seconds: float) -> str:
    return f"{int(seconds // 60):3}:{int(seconds % 60):02}"


class _Show:
    """Shows the progress: on a terminal in one changing line, else with a line for each scenario."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._label = ""

    def now(self, label: str, text: str) -> None:
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._put(f"\r\x1b[K{f'{label} {text}'[:width]}")
        elif label != self._label:
            self._label = label
            self._put(f"{label} …\n")

    def line(self, text: str) -> None:
        self._put(f"\r\x1b[K{text}\n" if self._is_terminal else f"{text}\n")

    def _put(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def table(self, reports: Sequence[dict[str, Any]], outcomes: Sequence[Outcome], *, order: list[str]) -> None:
        """Print every check of every scenario, and the scenarios that could not be run."""
        rows = [
            (report["scenario"], check["name"], words.full(check["value"]), check["goal"], _verdict(check["ok"]))
            for report in sorted(reports, key=lambda one: order.index(one["scenario"]))
            for check in report["checks"]
        ]
        rows += [(one.name, one.word, "", "", "FAILED") for one in outcomes if one.code not in (0, 1)]
        rows.insert(0, ("scenario", "check", "value", "goal", ""))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        self.line("")
        for row in rows:
            cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2]), row[3].ljust(widths[3])]
            self.line("  ".join([*cells, row[4]]).rstrip())
        checks = [check["ok"] for report in reports for check in report["checks"]]
        self.line(f"\n{sum(checks)} of {len(checks)} checks hold, in {_duration(sum(one.seconds for one in outcomes))}")


def _verdict(is_ok: bool) -> str:
    return "ok" if is_ok else "MISSED"
