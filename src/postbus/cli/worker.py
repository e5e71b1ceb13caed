"""postbus worker"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import timedelta
from typing import Annotated

import typer

from postbus._runtime.event_loop import EventLoop, run
from postbus.bus import Bus
from postbus.cli._command import Cli
from postbus.cli._exits import FAILED, INTERRUPTED, OK, usage_error
from postbus.cli._inputs import as_duration
from postbus.cli._load import load
from postbus.cli._logging import LogFormat, LogLevel, configure_logging
from postbus.errors import PostbusError

_logger = logging.getLogger("postbus")


DrainTimeout = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long a stop waits for running handlers; by default until they end."),
]
LoopOption = Annotated[EventLoop, typer.Option("--loop", help="The event loop; auto: uvloop where it is installed.")]


def worker(
    cli: Cli,
    target: Annotated[
        str, typer.Argument(metavar="MODULE[:BUS]", help="The module and its Bus (bus).", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Option(help="The worker's name in lists, before a random part; by default host and pid.")
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="Write log events of this level and above.")
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="The format of log events; by default text, or json with --json.")
    ] = None,
    loop: LoopOption = EventLoop.AUTO,
    drain_timeout: DrainTimeout = None,
) -> int:
    """Run the handlers of a module. The module is looked for in the current directory, too.

    The first Ctrl-C or SIGTERM drains: running handlers finish, and all other messages are given back (exit code 0).
    A second one, or the end of --drain-timeout, cancels handlers that still run (exit code 130); those in threads end
    with the process. Messages that were handled by then are not delivered again.
    """
    configure_logging(log_level.value, log_format or (LogFormat.JSON if cli.as_json else LogFormat.TEXT))
    code = run(_work(cli, target, name, as_duration(drain_timeout, name="--drain-timeout")), loop)
    if code == INTERRUPTED:
        _end_with_threads(code)
    return code


def _end_with_threads(code: int) -> None:
    """End now if handlers are still running in threads: these cannot be cancelled, and Python would wait for them.

    Their messages are delivered again, and other processes may have them already.
    """
    if any(one.name.startswith("postbus-") and not one.daemon for one in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


async def _work(cli: Cli, target: str, name: str | None, drain_timeout: timedelta | None) -> int:
    _choose_database(cli)
    bus = load_bus(target)  # within the event loop, which the module may need
    _check_database(cli, bus, target)
    try:
        return await run_until_stopped(bus, name, drain_timeout)
    finally:
        await bus.close()


async def run_until_stopped(bus: Bus, name: str | None, drain_timeout: timedelta | None) -> int:
    """Consume until a signal. Returns the exit code."""
    try:
        return OK if await bus.run(name=name, drain_timeout=drain_timeout) else INTERRUPTED
    except PostbusError:
        raise
    except Exception:
        _logger.exception("worker.failed")
        return FAILED


def _choose_database(cli: Cli) -> None:
    """Pass options of the command line to the module's `Bus.open()`, which reads the environment."""
    if cli.dsn is not None:
        os.environ["POSTBUS_DSN"] = cli.dsn
    elif cli.data_dir is not None:
        os.environ.pop("POSTBUS_DSN", None)
        os.environ["POSTBUS_DATA_DIR"] = str(cli.data_dir)


def _check_database(cli: Cli, bus: Bus, target: str) -> None:
    if cli.dsn is not None and bus.dsn != cli.dsn:
        raise usage_error(
            f"--dsn has no effect: {target} opens another database",
            remedy="omit --dsn, or use Bus.open() in the module",
        )


def load_bus(target: str) -> Bus:
    """The bus that `module:attribute` names."""
    return load(target, Bus, default="bus", usage="postbus worker", example="bus = Bus.open()")
