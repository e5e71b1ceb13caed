"""Benchmarks without the command line's extra packages: python -m postbus.bench queue --json.

`postbus bench all` and `postbus bench report` are of the command line alone.
"""

from __future__ import annotations

import argparse
import sys

# Scenarios are imported when one is run: this module is imported by every process that one of them starts.


def _parser() -> argparse.ArgumentParser:
    from postbus.bench.run import SCENARIOS

    parser = argparse.ArgumentParser(prog="python -m postbus.bench", description="Measure Postbus beside its peers.")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--dsn", help="a server to measure on, in databases made for it (default: an embedded one)")
    parser.add_argument("--quick", action="store_true", help="everything small: shows that it works")
    parser.add_argument("--short", action="store_true", help="smaller and shorter: all scenarios in half an hour")
    parser.add_argument("--tell-parts", action="store_true", help="tell on standard error which part begins")
    parser.add_argument("--messages", type=int, help="messages in the large backlog, or in the history")
    parser.add_argument("--seconds", type=float, help="age of the old transaction, or how long a load lasts")
    parser.add_argument("--lanes", type=int, help="lanes of the topic of a load test")
    return parser


def main() -> int:
    """Run a scenario. Returns the exit code: 0 if all checks hold, 1 if not, 2 if it could not be run."""
    from postbus.bench.run import run
    from postbus.errors import PostbusError

    given = vars(_parser().parse_args())
    try:
        return run(given.pop("scenario"), as_json=given.pop("json"), **given)
    except PostbusError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
