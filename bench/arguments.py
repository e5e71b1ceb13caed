"""The command line: which scenario to run, and at what size."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.paper.write import write
from bench.run import SCENARIOS, run
from bench.suite import FOLDER, MINUTES, run_all
from postbus.cli._exits import INTERRUPTED, report

_BACKLOG = "messages in the large backlog"
_AGE = "age of the old transaction in seconds, at least 1"
_Options = dict[str, tuple[float, str]]
_LOAD: _Options = {
    "seconds": (3, "how many seconds the load lasts, at least 3"),
    "lanes": (1, "lanes of the topic"),
}
_COMPARED: _Options = {"messages": (1000, _BACKLOG), "seconds": (1, _AGE)}

_ABOUT = {
    "queue": "the queue: publishing, draining, latency, backlog, old transactions, memory",
    "log": "the log: publishing, consuming, ten groups, latency, backlog, old transactions, many topics",
    "peers": "Postbus beside other queues and brokers; names those that are not installed",
    "lt1": "load test: 10,000 messages a second to 4 groups, with receipts",
    "lt2": "load test: 10,000 messages a second to 8 groups, with receipts",
    "lt3": "load test: 10,000 messages a second to 16 groups, with receipts",
    "lt4": "load test: 10,000 messages a second to 32 groups, with receipts",
    "lt5": "load test: 10,000 messages a second to 16 groups",
    "lt6": "load test: 10,000 messages a second to 64 groups",
    "lt7": "load test: 30,000 messages a second to 100 groups",
    "catch-up": "a group that is 5,000,000 messages behind, beside live groups and an application",
    "kill-and-resurrect": "a group is killed, found dead, and comes back, in short minutes",
    "isolation": "a topic with 10 messages a second beside one at full speed with ten groups",
    "thinning": "publishing while old messages are deleted from partitions that a neighbour still needs",
    "partitions": "partitions are created and dropped under load, in short days",
    "lanes": "pops from a topic with 100,000 named lanes, of which 1,000 have messages",
    "curves": "throughput, latency, space and memory by batch, groups, lanes, backlog, payload and load",
    "relay": "relaying to NATS JetStream and to nowhere, beside reading the log alone",
    "http": "the HTTP server: batches and single messages by 50 connections, and 1,000 waiting polls",
}
_OWN: dict[str, _Options] = {
    "queue": _COMPARED,
    "log": _COMPARED,
    **{f"lt{number}": _LOAD for number in range(1, 8)},
    "catch-up": {
        "messages": (1000, "messages that the group is behind"),
        "seconds": (4, "seconds after which the run no longer waits for the group, at least 4"),
    },
    "kill-and-resurrect": {"seconds": (15, "how many seconds the whole story takes, about; at least 15")},
    "isolation": {"seconds": (4, "how many seconds the quiet topic is watched, at least 4")},
    "thinning": {"seconds": (4, "how many seconds are measured, at least 4")},
    "partitions": {"seconds": (12, "how many seconds the whole story takes, about; at least 12")},
    "curves": {"messages": (1000, "messages in the largest backlog")},
}
"""The options that only some scenarios have, each with its smallest value."""
_KINDS: dict[str, type[int] | type[float]] = {"messages": int, "seconds": float, "lanes": int}


def main(args: Sequence[str]) -> int:
    """Run a command line. Returns the exit code: 0 if all checks hold, 1 if some do not, others if it failed."""
    given = vars(_parser().parse_args(args))
    command: Callable[..., int] = given.pop("command")
    try:
        return command(**given)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return report(error, as_json=given.get("as_json", False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Postbus beside its peers.")
    commands = parser.add_subparsers(required=True, metavar="SCENARIO")
    for name in SCENARIOS:
        _add_scenario(commands.add_parser(name, help=_ABOUT[name], description=_ABOUT[name]), name)
    _add_all(commands.add_parser("all", help="all scenarios, each in its short form, and a report with charts"))
    page = commands.add_parser("report", help="make a page with charts of the JSON files in a folder")
    page.add_argument("folder", type=_folder, help="has NAME.json files")
    page.set_defaults(command=_report)
    return parser


def _add_scenario(parser: argparse.ArgumentParser, name: str) -> None:
    parser.set_defaults(command=run, scenario=name)
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    _add_common(parser)
    parser.add_argument("--short", action="store_true", help="smaller and shorter, as in: python -m bench all")
    parser.add_argument("--tell-parts", action="store_true", help="write on standard error which part begins")
    for option, (least, means) in _OWN.get(name, {}).items():
        parser.add_argument(f"--{option}", type=_at_least(_KINDS[option], least), help=means)


def _add_all(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_all)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where JSON, Markdown and SVG files go")
    _add_common(parser)
    parser.add_argument("--long", action="store_true", help="each scenario in its long form, without a time limit")
    parser.add_argument(
        *("--minutes",),
        type=_at_least(float, 1),
        default=MINUTES,
        help="scenarios that have not ended by then are ended, and count as failed",
    )
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="only this scenario; may be repeated")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dsn", help="a server to measure on, in databases of its own (default: an embedded one)")
    parser.add_argument("--quick", action="store_true", help="everything small: shows that it works")


def _at_least(kind: type[int] | type[float], least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least:g}")
        return value

    return number


def _folder(text: str) -> Path:
    if not (path := Path(text)).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return path


def _all(*, folder: Path, dsn: str | None, quick: bool, long: bool, minutes: float, only: Sequence[str] | None) -> int:
    size = "--quick" if quick else None if long else "--short"
    names = [name for name in SCENARIOS if not only or name in only]
    return run_all(names, folder=folder, size=size, dsn=dsn, minutes=None if long else minutes)


def _report(folder: Path) -> int:
    for path in write(folder, order=list(SCENARIOS)):
        sys.stdout.write(f"{path}\n")
    return 0
