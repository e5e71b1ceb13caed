"""Commands: the options that all of them have, how they run, and how they report errors."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from postbus._db.connect import PROGRAM
from postbus.bus import Bus
from postbus.cli._exits import OK, report, usage_error
from postbus.cli._say import say
from postbus.cli._who import os_actor

C = TypeVar("C", bound=Callable[..., Any])

_PANEL = "Options of all commands"
DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="The database; by default the embedded server. (env POSTBUS_DSN)",
        rich_help_panel=_PANEL,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="The folder in which the embedded server keeps its data. (env POSTBUS_DATA_DIR)",
        rich_help_panel=_PANEL,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Write JSON, for programs; errors too, on stderr.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True)
class Cli:
    """The options of all commands: the database, and the form of the output."""

    dsn: str | None = field(default=None, repr=False)
    data_dir: Path | None = None
    as_json: bool = False

    def over(self, earlier: Cli) -> Cli:
        """These options. Missing ones are taken from those before the command's name."""
        chosen = Cli(self.dsn or earlier.dsn, self.data_dir or earlier.data_dir, self.as_json or earlier.as_json)
        if "" in (self.dsn, earlier.dsn):
            raise usage_error("--dsn is empty", remedy="give a DSN, or omit --dsn to use the embedded server")
        if chosen.dsn and chosen.data_dir:
            raise usage_error(
                "--dsn and --data-dir are both given",
                remedy="omit one: --dsn names a server of yours, --data-dir the embedded server",
            )
        return chosen

    @property
    def server_dsn(self) -> str | None:
        """The DSN of a server that is not ours, or None for the embedded one."""
        if self.data_dir is not None:
            return None  # the command line overrides the environment
        return self.dsn or os.environ.get("POSTBUS_DSN") or None

    def open_bus(self) -> Bus:
        """A bus that is not connected yet. Starts the embedded server if the command uses it."""
        return Bus.open(self.server_dsn, data_dir=self.data_dir, actor=os_actor())

    def note(self, text: str) -> None:
        """Write a remark for people on stderr. It is no part of the result, and there is none with --json."""
        if not self.as_json:
            say(text, to=sys.stderr)


def group(name: str, help: str) -> typer.Typer:
    """Commands under one name. The name alone shows their help."""
    app = typer.Typer(name=name, help=help)

    @app.callback(invoke_without_command=True)
    def help_unless_asked(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            show_help(ctx)

    return app


def show_help(ctx: typer.Context) -> typing.NoReturn:
    typer.echo(ctx.get_help())
    raise typer.Exit


def command(
    app: typer.Typer,
    name: str,
    *,
    options: Sequence[inspect.Parameter] = (),
    help: str | None = None,
) -> Callable[[C], C]:
    """Register a function, async or not, whose first parameter is a `Cli`.

    The `Cli` holds the options that all commands have. The function gets `options` as keyword arguments.
    """

    def register(function: C) -> C:
        app.command(name, help=help)(_Command(function, options))
        return function

    return register


class OptionsCallable:
    """A callable with one parameter per option: Typer reads options from a signature."""

    def __init__(self, parameters: Sequence[inspect.Parameter]) -> None:
        self.__signature__ = inspect.Signature(parameters)
        self.__annotations__ = {one.name: one.annotation for one in parameters}


class _Command(OptionsCallable):
    """Runs a command, and reports its errors."""

    def __init__(self, function: Callable[..., Any], options: Sequence[inspect.Parameter]) -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        _, *own = inspect.signature(function).parameters.values()
        named = [
            one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for one in own
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        super().__init__(
            [
                keyword("ctx", typer.Context, inspect.Parameter.empty),
                *named,
                *options,
                keyword("dsn", DsnOption),
                keyword("data_dir", DataDirOption),
                keyword("as_json", JsonOption, False),
            ]
        )
        self._function = function
        self.__doc__ = function.__doc__

    def __call__(self, ctx: typer.Context, dsn: str | None, data_dir: Path | None, as_json: bool, **given: Any) -> None:
        run_command(ctx, Cli(dsn, data_dir, as_json), lambda cli: self._function(cli, **given))


def run_command(ctx: typer.Context, cli: Cli, function: Callable[[Cli], Any]) -> None:
    """Run a function, async or not, as a command with these options, and report its errors."""
    PROGRAM.set(ctx.command_path)
    earlier: Cli = ctx.obj or Cli()
    code = _run(lambda: function(cli.over(earlier)), earlier.as_json or cli.as_json)
    if code != OK:
        raise typer.Exit(code)


def keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """A parameter, for `OptionsCallable`."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option(name: str, kind: Any, help: str, *, flag: str | None = None) -> inspect.Parameter:
    """An option that may be omitted, for `command(options=…)`."""
    flag = flag or f"--{name.replace('_', '-')}"
    return keyword(name, Annotated[kind | None, typer.Option(flag, help=help)])


def _run(function: Callable[[], Any], as_json: bool) -> int:
    """Run a command. Returns its exit code: what the command returns, or 0."""
    try:
        result = function()
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        sys.stdout.flush()
        return result or OK
    except typer.Exit:
        raise
    except asyncio.CancelledError:
        return report(KeyboardInterrupt(), as_json=as_json)
    except (Exception, KeyboardInterrupt) as error:
        return report(error, as_json=as_json)
