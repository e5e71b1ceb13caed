"""Hurt a running system in every way we know, and judge what became of its messages."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import platform
import random
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faults import cell, report
from faults.catalogue import FAULTS, mix
from faults.cell import Verdict
from faults.controls import CONTROLS
from faults.modes import MODES, Mode, shifts
from faults.servers.run import Servers


class Run:
    """All faults once, the controls, and then mixes of faults for as long as there is time."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._modes: list[Mode] = [mode for mode in MODES.values() if not args.mode or mode.name in args.mode]
        self._until = time.monotonic() + args.minutes * 60
        self.verdicts: list[Verdict] = []
        self.controls: list[tuple[Verdict, bool]] = []

    async def play(self) -> None:
        async with Servers() as servers:
            for fault in FAULTS:
                if self._is_wanted(fault.name):
                    for modes in shifts(filter(fault.concerns, self._modes)):
                        await self._judge(servers, fault, modes)
            for control in CONTROLS:
                if self._is_wanted(control.fault.name):
                    verdict, is_caught = await control.run(servers, self._args.seed)
                    print(report.control_line(verdict, is_caught=is_caught), flush=True)
                    self.controls.append((verdict, is_caught))
            for number in itertools.count(1):
                if time.monotonic() > self._until or not self._is_wanted("mix"):
                    break
                parts = shifts(self._modes)
                fault = mix(f"mix {number}", f"{self._args.seed}.{number}")
                await self._judge(servers, fault, parts[number % len(parts)], f".{number}")

    async def _judge(self, servers: Servers, fault: cell.Fault, modes: Sequence[Mode], part: str = "") -> None:
        verdict = await cell.run(servers, fault, modes, f"{self._args.seed}{part}", keep=self._args.folder)
        print(report.line(verdict), flush=True)
        self.verdicts.append(verdict)

    def _is_wanted(self, name: str) -> bool:
        return not self._args.fault or any(part in name for part in self._args.fault)

    @property
    def is_green(self) -> bool:
        """Absent programs are reported, and are no failure."""
        return all(one.is_green or one.absent for one in self.verdicts) and all(caught for _, caught in self.controls)


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="mixes are added until then; each fault runs once")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="the same one for the same run")
    parser.add_argument("--fault", action="append", help="only those with this in their name")
    parser.add_argument("--mode", action="append", choices=sorted(MODES), help="only this way of consuming")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/faults"), help="for the table, and the files of runs that fail"
    )
    args = parser.parse_args()
    print(f"seed {args.seed}, {args.minutes:g} minutes", flush=True)
    run = Run(args)
    began = time.monotonic()
    asyncio.run(run.play())
    about: dict[str, Any] = {
        "seed": args.seed,
        "date": datetime.now(UTC).date().isoformat(),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "PostgreSQL": os.environ.get("PG", "18"),
        "Python": platform.python_version(),
    }
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "faults.md").write_text(report.markdown(about, run.verdicts, run.controls))
    (args.folder / "faults.json").write_text(report.as_json(about, run.verdicts, run.controls))
    cells = sum(len(one.modes) for one in run.verdicts if not one.absent)
    told = "all green" if run.is_green else "NOT GREEN"
    print(f"{told}: {len(run.verdicts)} faults, {cells} cells, {len(run.controls)} controls; table in {args.folder}")
    return 0 if run.is_green else 1


if __name__ == "__main__":
    sys.exit(main())
