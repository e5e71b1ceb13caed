"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

MAX_ID = 2**63 - 1
NamedMode = Literal["new", "all", "timestamp"]
"""The modes in which a group can begin; that of a message's id has no option, since --from takes an id."""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)]
OnlyTopic = Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only of this topic.", show_default=False)]
TopicOrPattern = Annotated[
    str | None, typer.Argument(metavar="TOPIC", help="The topic; with --group also a pattern.", show_default=False)
]
Key = Annotated[str | None, typer.Option(help="Only messages of this key; for groups.")]
Namespace = Annotated[str | None, typer.Option(help="All topics of this namespace; for groups.")]
Task = Annotated[str | None, typer.Option(help="All topics of this task; for groups.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", show_default=False)]
MessageId = Annotated[
    int, typer.Argument(metavar="ID", min=0, max=MAX_ID, help="The message's id.", show_default=False)
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="POSITION",
        help="now, beginning, a message's id, a time such as 2030-01-31T18:00, or how long ago: 2h.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
