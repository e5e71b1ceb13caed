"""Hurt a running system in every way we know, and judge what became of its messages."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

from faults import cell, report
from faults.catalogue import FAULTS
from faults.cell import Fault, Verdict
from faults.modes import MODES, Mode
from faults.servers.run import Servers


async def run(faults: list[Fault], modes: list[Mode], seed: str, keep: Path) -> list[Verdict]:
    verdicts = []
    async with Servers() as servers:
        for fault in faults:
            verdict = await cell.run(servers, fault, modes, seed, keep=keep)
            print(report.line(verdict), flush=True)
            verdicts.append(verdict)
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    parser.add_argument("--fault", action="append", help="only these; a part of the name is enough")
    parser.add_argument("--mode", action="append", choices=sorted(MODES), help="only these")
    parser.add_argument("--keep", type=Path, default=Path("build/faults"), help="for the files of runs that fail")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    faults = [one for one in FAULTS if not args.fault or any(part in one.name for part in args.fault)]
    modes = [mode for mode in MODES.values() if not args.mode or mode.name in args.mode]
    verdicts = asyncio.run(run(faults, modes, args.seed, args.keep))
    return 0 if all(one.is_green for one in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
