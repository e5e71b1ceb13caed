"""postbus up"""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated

import typer

from postbus._db.addresses import public_address
from postbus._db.connect import connect
from postbus._db.error_map import translated_errors
from postbus._maintenance.maintenance_loop import MaintenanceLoop
from postbus._runtime.event_loop import run
from postbus._runtime.loop import pause
from postbus.bus import Bus
from postbus.cli._command import Cli
from postbus.cli._exits import INTERRUPTED, OK, usage_error
from postbus.cli._logging import LogFormat, configure_logging
from postbus.cli._render import write_json
from postbus.cli._say import say
from postbus.cli._signals import StopSignals, stops_by_signal
from postbus.cli.demo.stage import perform
from postbus.cli.demo.views import view_for, write_summary
from postbus.cli.serve import ServeOptions, WebhookAllow, served
from postbus.embedded import default_data_dir
from postbus.errors import DatabaseUnavailable


def up(
    cli: Cli,
    demo: Annotated[bool, typer.Option("--demo", help="Run a small shop that makes live traffic.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after this many seconds.")] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port of the HTTP server; by default 8472, or any other if that is taken.",
            show_default=False,
        ),
    ] = None,
    webhook_allow: WebhookAllow = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="Do not serve HTTP.")] = False,
) -> int:
    """Run the embedded PostgreSQL until Ctrl-C, for all processes on this machine that use the same folder.

    It also serves HTTP to this machine, as postbus serve does. --demo shows Postbus at work, on a server of yours with
    --dsn.
    """
    if cli.server_dsn is not None and not demo:
        raise usage_error(
            "up runs the embedded server, but a DSN is given",
            remedy="omit --dsn and unset POSTBUS_DSN, or add --demo to run the demo there",
        )
    configure_logging("WARNING", LogFormat.JSON if cli.as_json else LogFormat.TEXT)
    with stops_by_signal():
        try:
            if cli.server_dsn is None:
                cli.note("starting PostgreSQL …")
            return run(
                _run(
                    cli.open_bus(),
                    cli,
                    demo,
                    seconds,
                    None if no_http else ServeOptions(http_port, tuple(webhook_allow or ())),
                )
            )
        except KeyboardInterrupt:
            return OK


async def _run(bus: Bus, cli: Cli, demo: bool, seconds: float | None, http: ServeOptions | None) -> int:
    ending = StopSignals()
    ending.listen()
    try:
        await bus.connect()
        async with served(bus, cli, http) as url:
            if demo:
                await _demo(bus, cli, ending, seconds, url)
            else:
                _tell_address(bus, cli, url)
                await _serve(bus, ending.stop, seconds, sweeps=url is None)
    finally:
        await bus.close()
    return INTERRUPTED if ending.abort.is_set() else OK


async def _demo(bus: Bus, cli: Cli, ending: StopSignals, seconds: float | None, url: str | None) -> None:
    target = _target(cli)
    title = "  ".join(filter(None, (public_address(bus.dsn, with_user=True), url)))
    if url is not None:
        cli.note(f"HTTP is served at {url}")
    view = view_for(as_json=cli.as_json, title=title, target=target)
    tally = await perform(bus, view, stop=ending.stop, abort=ending.abort, seconds=seconds)
    write_summary(tally, as_json=cli.as_json, target=target)


def _target(cli: Cli) -> str:
    """The settings that other commands need to find the same database."""
    if cli.dsn is not None:
        return f" --dsn {shlex.quote(public_address(cli.dsn, with_user=True))}"
    return "" if cli.data_dir is None else f" --data-dir {shlex.quote(str(cli.data_dir))}"


def _tell_address(bus: Bus, cli: Cli, url: str | None) -> None:
    data_dir = cli.data_dir or default_data_dir()
    if cli.as_json:
        write_json({"dsn": bus.dsn, "data_dir": str(data_dir), "http": url})
        return
    say(f"PostgreSQL runs, with the schema of Postbus. Its data is in {data_dir}")
    say()
    say(f"  export POSTBUS_DSN={shlex.quote(bus.dsn)}")
    say(f"  psql {shlex.quote(bus.dsn)}")
    say()
    if url is not None:
        say(f"HTTP is served at {url}, and described at {url}/docs")
        say("It authenticates nobody: every account of this machine is an administrator there (off with --no-http)")
        say()
    say("Other commands find the server by themselves. Ctrl-C ends it.")


async def _serve(bus: Bus, stop: asyncio.Event, seconds: float | None, *, sweeps: bool) -> None:
    """Wait until we are stopped or the server ends. Sweep meanwhile, unless the HTTP server does."""
    with translated_errors():
        watch = await connect(bus.dsn)
    lost = asyncio.Event()
    sweeping = asyncio.create_task(MaintenanceLoop(await bus.connect(), "up").run(stop)) if sweeps else None
    watch.add_termination_listener(lambda _: lost.set())
    try:
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, stop.set)
        while not stop.is_set() and not lost.is_set():
            await pause(3600, stop, lost)
        if lost.is_set() and not stop.is_set():
            raise DatabaseUnavailable("the server has ended", remedy="start it again: postbus up")
    finally:
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
        watch.terminate()
