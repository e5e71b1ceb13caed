"""All commands under one name."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer
from typer.main import get_command

import postbus
from postbus import _migrate
from postbus.cli import (
    catch_up,
    consume,
    dead_letters,
    doctor,
    events,
    group_checks,
    groups,
    import_,
    leases,
    messages,
    migrate,
    pop,
    publish,
    rebase,
    relay,
    relay_admin,
    scopes,
    serve,
    sweep,
    tail,
    tokens,
    topics,
    up,
    worker,
)
from postbus.cli._command import Cli, DataDirOption, DsnOption, JsonOption, command, show_help
from postbus.cli._exits import EXIT_CODES, FAILED, OK, USAGE, report, tell
from postbus.cli._render import write_json

_EPILOG = "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + "."

app = typer.Typer(
    name="postbus",
    help="Transactional messaging inside PostgreSQL.",
    epilog=_EPILOG,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def before_the_command(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
    dsn: DsnOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    ctx.obj = Cli(dsn, data_dir, as_json)
    if version:
        print_version(ctx.obj)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        show_help(ctx)


def print_version(cli: Cli) -> None:
    """Print the version."""
    if cli.as_json:
        schema = _migrate.migrations()[-1].number
        write_json({"postbus": postbus.__version__, "schema": schema, "python": platform.python_version()})
    else:
        print(f"postbus {postbus.__version__}")


command(app, "up")(up.up)
command(app, "serve")(serve.serve)
app.add_typer(tokens.app)
command(app, "migrate")(migrate.migrate)
command(app, "doctor")(doctor.doctor)
app.add_typer(topics.app)
command(app, "publish")(publish.publish)
command(app, "tail")(tail.tail)
command(app, "consume")(consume.consume)
command(app, "pop")(pop.pop)
app.add_typer(leases.app)
command(groups.app, "catch-up")(catch_up.catch_up)
command(groups.app, "check")(group_checks.check)
command(groups.app, "force-complete")(group_checks.force_complete)
command(groups.app, "subscribe", options=scopes.SCOPE_AND_START)(scopes.subscribe)
command(groups.app, "scopes")(scopes.scopes)
command(groups.app, "forget", options=scopes.SCOPE)(scopes.forget)
app.add_typer(groups.app)
app.add_typer(messages.app)
app.add_typer(dead_letters.app)
app.add_typer(sweep.app)
app.add_typer(events.app)
command(relay.app, "status", options=relay_admin.ALERT_OPTIONS)(relay_admin.status)
command(relay.app, "replay", options=relay.ROUTE_OPTIONS)(relay_admin.replay)
command(relay.app, "rewind")(relay_admin.rewind)
app.add_typer(relay.app)
command(app, "worker")(worker.worker)
command(app, "import")(import_.import_)
command(app, "rebase")(rebase.rebase)


@app.command(
    "bench",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench(ctx: typer.Context) -> None:
    """Measure what a database can do."""
    # Not imported before it is asked for: nobody else needs what it needs.
    from postbus.cli.bench import app as bench_app

    code = get_command(bench_app).main(ctx.args, prog_name="postbus bench", standalone_mode=False)
    if isinstance(code, int) and code != OK:
        raise typer.Exit(code)


command(app, "version")(print_version)


def run(args: list[str]) -> int:
    """Run a command line. Returns the exit code."""
    as_json = "--json" in (args[: args.index("--")] if "--" in args else args)
    try:
        code: Any = get_command(app).main(args, prog_name="postbus", standalone_mode=False)
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
    tell("usage", error.format_message(), f"see {path} --help", as_json=as_json)
    return USAGE
