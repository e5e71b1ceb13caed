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
        typer.Option("--as-copy", help="The original stays in use: messages of this copy get event ids of their own."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Make groups work in a database that was restored from a dump.

    The positions of groups belong to the server that was dumped. Stop everything that publishes or consumes first.
    A group gets all messages that it has not had, and may get some again. One that was catching up gets everything
    again that it got since its catch-up began. Messages keep their event_id, because this database replaces the
    original. If the original stays in use, give --as-copy in the copy.
    """
    async with cli.open_bus() as bus:
        if not yes:
            confirm("Bind the positions of all groups to this server? Nothing may publish or consume meanwhile.")
        count = await bus.admin.rebase(as_copy=as_copy)
        source = (await bus.connect()).source
    if cli.as_json:
        write_json({"cursors": count, "source": source})
    else:
        say(f"rebased {counted(count, 'cursor')}; messages have {'a new' if as_copy else 'the same'} source, {source}")
