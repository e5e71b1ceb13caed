"""postbus sweep …"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from postbus._maintenance.maintenance_loop import MaintenanceLoop
from postbus.cli._command import (
    Cli,
    DataDirOption,
    DsnOption,
    JsonOption,
    command,
    option,
    run_command,
    show_help,
)
from postbus.cli._exits import usage_error
from postbus.cli._inputs import with_durations
from postbus.cli._logging import LogFormat, configure_logging
from postbus.cli._render import as_dict, printable, write_facts, write_json, write_table
from postbus.cli._say import say
from postbus.cli._signals import StopSignals
from postbus.results import SweepJob
from postbus.sweeping import DURATIONS, PRESETS

app = typer.Typer(name="sweep", help="Show, configure and run the maintenance jobs.")

_OPTIONS = (
    option("interval", str, "How often to look for finished messages, and for partitions of the log to drop."),
    option("batch_size", int, "How many rows to remove at a time."),
    option("detection_interval", str, "How often to look for groups without heartbeats."),
    option("heartbeat_timeout", str, "The default of new topics: a group without a heartbeat for this long is DEAD."),
    option("subscription_retention", str, "How long DEAD and CANCELLED subscriptions are kept: 30d."),
    option("audit_retention", str, "How long entries of the audit log are kept: 90d, and at least 30d."),
)
_FIGURES = (
    "backlog", "finished_rows", "finished_messages", "partitions", "partition_messages", "published_rate", "swept_rate",
    "processes",
)  # fmt: skip


@app.callback(invoke_without_command=True)
def sweep(
    ctx: typer.Context,
    forever: Annotated[
        bool,
        typer.Option("--forever", help="Sweep until Ctrl-C, for deployments with neither a worker nor postbus serve."),
    ] = False,
    dsn: DsnOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    cli = Cli(dsn, data_dir, as_json)
    if ctx.invoked_subcommand is not None:
        run_command(ctx, cli, lambda chosen: _hand_on(ctx, chosen, forever))
    elif forever:
        run_command(ctx, cli, _sweep_forever)
    else:
        show_help(ctx)


def _hand_on(ctx: typer.Context, cli: Cli, forever: bool) -> None:
    if forever:
        raise usage_error("--forever takes no command", remedy="run: postbus sweep --forever")
    ctx.obj = cli


async def _sweep_forever(cli: Cli) -> None:
    configure_logging("INFO", LogFormat.JSON if cli.as_json else LogFormat.TEXT)
    ending = StopSignals()
    ending.listen()
    async with cli.open_bus() as bus:
        sweeping = MaintenanceLoop(await bus.connect(), "sweep")
        cli.note(f"{sweeping.name} sweeps until Ctrl-C")
        await sweeping.run(ending.stop)


@command(app, "show")
async def show(cli: Cli) -> None:
    """Show whether sweeping keeps up, its settings, and what each job has done."""
    async with cli.open_bus() as bus:
        health, setting = await bus.admin.sweep_health(), await bus.admin.sweeping()
    if cli.as_json:
        write_json(as_dict(health) | {"settings": setting})
        return
    state = "healthy" if health.healthy else f"unhealthy: {health.reason}"
    figures = {name: value for name in _FIGURES if (value := getattr(health, name)) is not None}
    write_facts({"state": state} | as_dict(setting) | {name: _rounded(value) for name, value in figures.items()})
    if health.jobs:
        say()
        columns = {"job": "job", "runs": "runs", "last start": "started_at", "took": "took", "removed": "removed"}
        columns |= {"in total": "removed_total"}
        write_table(
            [*columns, "last failure"],
            [[*(getattr(one, name) for name in columns.values()), _failure(one)] for one in health.jobs],
            right=("runs", "took", "removed", "in total"),
        )


def _rounded(value: Any) -> Any:
    return f"{value:.1f} per second" if isinstance(value, float) else value


def _failure(job: SweepJob) -> str:
    return f"{printable(job.failed_at)} {job.error}" if job.failed_at else ""


@command(app, "set", options=_OPTIONS)
async def set_(
    cli: Cli,
    preset: Annotated[str | None, typer.Option("--preset", help=f"One of {', '.join(PRESETS)}.")] = None,
    **options: Any,
) -> None:
    """Set how all processes sweep: a preset, single options, or both. Other options keep their values."""
    given = with_durations(options, DURATIONS)
    if not given and preset is None:
        raise usage_error("nothing to set", remedy="give --preset or an option: postbus sweep set --help")
    chosen: Any = preset and preset.replace("-", "_")  # the database checks it
    async with cli.open_bus() as bus:
        setting = await bus.admin.set_sweeping(chosen, **given)
    if cli.as_json:
        write_json(setting)
    else:
        write_facts(as_dict(setting))


@command(app, "run")
async def run(cli: Cli) -> None:
    """Run all jobs now, whether they are due or not, until nothing more can be removed."""
    async with cli.open_bus() as bus:
        removed = await bus.admin.sweep()
    if cli.as_json:
        write_json(removed)
    else:
        write_facts({name.replace("_", " "): count for name, count in as_dict(removed).items()})
