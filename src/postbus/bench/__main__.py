"""Benchmarks without the command line's extra packages: python -m postbus.bench queue --json."""

from __future__ import annotations

import argparse
import sys

from postbus.bench.run import SCENARIOS, run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m postbus.bench", description="Measure Postbus beside its peers."
    )
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--dsn", help="a server to measure on, in databases made for it (default: an embedded one)"
    )
    parser.add_argument("--quick", action="store_true", help="everything small: shows that it works")
    parser.add_argument("--messages", type=int, help="messages in the large backlog")
    parser.add_argument("--seconds", type=float, help="age of the old transaction")
    return parser


if __name__ == "__main__":
    given = _parser().parse_args()
    sys.exit(
        run(given.scenario, dsn=given.dsn, as_json=given.json, quick=given.quick, messages=given.messages,
            seconds=given.seconds)
    )  # fmt: skip
