"""All commands under one name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from postbus.cli._command import Cli, DataDirOption, DsnOption, JsonOption, command, show_help
from postbus.cli._exits import EXIT_CODES, FAILED, OK, USAGE, report, tell

_COMMANDS = {
    "up": ["up"],
    "serve": ["serve"],
    "tokens": ["tokens"],
    "migrate": ["migrate"],
    "doctor": ["doctor"],
    "topics": ["topics"],
    "publish": ["publish"],
    "tail": ["tail"],
    "consume": ["consume"],
    "pop": ["pop"],
    "leases": ["leases"],
    "groups": ["groups", "catch_up", "group_checks", "scopes"],
    "messages": ["messages"],
    "dead-letters": ["dead_letters"],
    "sweep": ["sweep"],
    "audit": ["audit"],
    "events": ["events"],
    "relay": ["relay", "relay_admin"],
    "worker": ["worker"],
    "import": ["import_"],
    "rebase": ["rebase"],
    "bench": ["bench"],
    "version": ["version"],
}
"""The modules of each command. The first has a function with the command's name, or an `app`, which the others extend.

Only the modules of the given command are imported: importing all of them would double the time that a command takes.
"""
_EPILOG = "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + "."


def before_the_command(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    dsn: DsnOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    ctx.obj = Cli(dsn, data_dir, as_json)
    if version:
        from postbus.cli.version import version as print_version

        print_version(ctx.obj)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        show_help(ctx)


def _app_for(args: list[str]) -> typer.Typer:
    """The command line, with the commands that these arguments need."""
    app = typer.Typer(
        name="postbus",
        help="Transactional messaging inside PostgreSQL.",
        epilog=_EPILOG,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(before_the_command)
    for name in _wanted(args):
        modules = [import_module(f"postbus.cli.{module}") for module in _COMMANDS[name]]
        if hasattr(modules[0], "app"):
            app.add_typer(modules[0].app)
        else:
            command(app, name)(getattr(modules[0], _COMMANDS[name][0]))
    return app


def _wanted(args: list[str]) -> Iterable[str]:
    """The given command; all commands if none has this name, or no name is given."""
    left = iter(args)
    for one in left:
        if one in ("--dsn", "--data-dir"):
            next(left, None)
        elif not one.startswith("-"):
            return [one] if one in _COMMANDS else _COMMANDS
        elif one == "--version":
            return []
    return _COMMANDS


def run(args: list[str]) -> int:
    """Run a command line. Returns the exit code."""
    as_json = "--json" in (args[: args.index("--")] if "--" in args else args)
    try:
        code: Any = get_command(_app_for(args)).main(args, prog_name="postbus", standalone_mode=False)
    except typer.Abort:
        return FAILED
    except Exception as error:
        if not isinstance(error, _UsageError):
            return report(error, as_json=as_json)
        return _tell_usage(error, as_json=as_json)
    return code if isinstance(code, int) else OK


# Typer has its own copy of Click in some versions, and shares an installed one in others.
_UsageError: Any = typer.BadParameter.__base__


def _tell_usage(error: Any, *, as_json: bool) -> int:
    path = error.ctx.command_path if error.ctx else "postbus"
    message = " ".join(error.format_message().split())  # Typer breaks lines
    tell("usage", message, f"see {path} --help", as_json=as_json)
    return USAGE
