"""postbus rebase"""

from __future__ import annotations

from typing import Annotated

import typer

from postbus._runtime.visible_text import counted
from postbus.cli._arguments import Yes
from postbus.cli._command import Cli
from postbus.cli._inputs import confirm
from postbus.cli._render import write_json
from postbus.cli._say import say


async def rebase(
    cli: Cli,
    as_copy: Annotated[
        bool,
        typer.Option("--as-copy", help="The original goes on: messages of this copy get an event_id of their own."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Make groups work in a database that was restored from a dump.

    Their places are bound to the server that was dumped. Stop everything that publishes or consumes first.
    A group gets all that it had not had; some messages it may get again. A group that was catching up gets all
    that it was given since the catch-up began again. Messages keep their event_id, since this database replaces
    the original. If both go on, say --as-copy in the copy.
    """
    async with cli.open_bus() as bus:
        if not yes:
            confirm("Bind the places of all groups to this server? Nothing may publish or consume meanwhile.")
        count = await bus.admin.rebase(as_copy=as_copy)
        source = (await bus.connect()).source
    if cli.as_json:
        write_json({"cursors": count, "source": source})
    else:
        say(f"rebased {counted(count, 'cursor')}; messages have {'a new' if as_copy else 'the same'} source, {source}")
