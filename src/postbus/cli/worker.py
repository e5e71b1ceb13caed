"""postbus worker"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from postbus.bus import Bus
from postbus.cli._command import Cli
from postbus.cli._exits import FAILED, INTERRUPTED, OK, CommandError, usage_error
from postbus.cli._logging import LogFormat, LogLevel, configure_logging
from postbus.errors import PostbusError

_logger = logging.getLogger("postbus")


async def worker(
    cli: Cli,
    target: Annotated[
        str, typer.Argument(metavar="MODULE[:BUS]", help="The module, and its Bus (bus).", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Option(help="How the worker is listed; by default host, pid and a random part.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(case_sensitive=False)] = LogLevel.INFO,
    log_format: Annotated[LogFormat | None, typer.Option(help="By default text, or json with --json.")] = None,
) -> int:
    """Run the handlers of a module, which is looked for in the current directory too.

    The first Ctrl-C or SIGTERM drains: what has begun is finished, what has not is given back (exit code 0).
    A second one aborts (exit code 130).
    """
    configure_logging(log_level.value, log_format or (LogFormat.JSON if cli.as_json else LogFormat.TEXT))
    _choose_database(cli)
    bus = load_bus(target)
    _check_database(cli, bus, target)
    try:
        return await run_until_stopped(bus, name)
    finally:
        await bus.close()


async def run_until_stopped(bus: Bus, name: str | None) -> int:
    """Consume until a signal. Returns the exit code."""
    try:
        return OK if await bus.run(name=name) else INTERRUPTED
    except PostbusError:
        raise
    except Exception:
        _logger.exception("worker.failed")
        return FAILED


def _choose_database(cli: Cli) -> None:
    """What is said on the command line is for the module's `Bus.open()`, which reads the environment."""
    if cli.dsn is not None:
        os.environ["POSTBUS_DSN"] = cli.dsn
    elif cli.data_dir is not None:
        os.environ.pop("POSTBUS_DSN", None)
        os.environ["POSTBUS_DATA_DIR"] = str(cli.data_dir)


def _check_database(cli: Cli, bus: Bus, target: str) -> None:
    if cli.dsn is not None and bus.dsn != cli.dsn:
        raise usage_error(
            f"--dsn has no effect: {target} opens another database",
            remedy="leave --dsn out, or use Bus.open() there",
        )


def load_bus(target: str) -> Bus:
    """The bus that `module:attribute` names."""
    module_name, _, attribute = target.partition(":")
    found, module = load(module_name, attribute or "bus", before="postbus worker", suggest=_suggestion)
    if not isinstance(found, Bus):
        kind = type(found).__name__
        raise usage_error(
            f"{module_name}:{attribute or 'bus'} is no Bus but of type {kind}", remedy=_suggestion(module)
        )
    return found


def load(
    module_name: str, attribute: str, *, before: str, suggest: Callable[[ModuleType], str]
) -> tuple[Any, ModuleType]:
    """What `module:attribute` names, and the module. `before` stands before it on the command line."""
    parts = f"{module_name}.{attribute}".split(".")
    if module_name.endswith(".py") or not all(part.isidentifier() for part in parts):
        suggestion = module_name.removesuffix(".py").replace(os.sep, ".").strip(".") or "shop"
        raise usage_error(
            f"{module_name}:{attribute} is not module:name", remedy=f"such as: {before} {suggestion}:{attribute}"
        )
    module = _import(module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise usage_error(f"{module_name} has no {attribute!r}", remedy=suggest(module))
        found = getattr(found, part)
    return found, module


def _suggestion(module: ModuleType) -> str:
    buses = [f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, Bus)]
    return f"name the bus: {' or '.join(buses)}" if buses else "give the module a bus: bus = Bus.open()"


def _import(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise usage_error(
                f"there is no module {error.name!r}",
                remedy=f"run it from the folder that holds it ({Path.cwd()} has none), or set PYTHONPATH",
            ) from error
        raise _import_failed(name, error) from error
    except PostbusError:
        raise
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> CommandError:
    last_line = traceback.format_exception_only(error)[-1].strip()
    return CommandError(
        f"importing {name} failed: {last_line}",
        remedy=f"see {_where(error)}",
        code="import",
        exit_code=FAILED,
    )


def _where(error: BaseException) -> str:
    """The place in the user's code: the innermost below the current directory, else the innermost."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in (__file__, importlib.__file__)
    ]
    here = f"{Path.cwd()}{os.sep}"
    own = [one for one in frames if one.filename.startswith(here) and "site-packages" not in one.filename]
    place = (own or frames or traceback.extract_tb(error.__traceback__))[-1]
    return f"{place.filename}, line {place.lineno}"
