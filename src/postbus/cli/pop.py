"""postbus pop"""

from __future__ import annotations

from typing import Annotated

import typer

from postbus.cli._arguments import Key, NamedMode, Namespace, Task, TopicOrPattern
from postbus.cli._command import Cli
from postbus.cli._inputs import as_duration, first_position
from postbus.cli._render import duration, line_of, write_json
from postbus.cli._say import say
from postbus.cli.consume import as_json
from postbus.pull import Delivery, PopOptions, Popped


async def pop(
    cli: Cli,
    *,
    topic: TopicOrPattern = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Pop for this group, from a PUB_SUB topic.")] = None,
    key: Key = None,
    namespace: Namespace = None,
    task: Task = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Where a new group begins: now, beginning, a message's id, a time, or how long ago: 2h.",
        ),
    ] = None,
    mode: Annotated[
        NamedMode | None, typer.Option(help="The same by name: from now on, all messages, or from --at on.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="WHEN", help="With --mode timestamp: the time, or how long ago: 2h.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", "-n", min=1, max=10_000, help="At most this many messages.")] = 1,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="Wait this long for the first message.")] = "0",
    lease: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Hold the messages for this long; by default as long as the topic says."),
    ] = None,
    auto_ack: Annotated[
        bool, typer.Option("--auto-ack", help="Ack the messages at once: they are not delivered again.")
    ] = False,
) -> None:
    """Take messages and print them with the token of their lease. Settle them with postbus leases.

    Messages that are not settled when the lease ends are delivered again.
    """
    options: PopOptions = {
        "group": group,
        "key": key,
        "namespace": namespace,
        "task": task,
        "mode": mode,
        "start": first_position(start, at),
        "batch": batch,
        "wait": as_duration(wait, name="--wait") or 0,
        "lease": as_duration(lease, name="--lease"),
        "auto_ack": auto_ack,
    }
    async with cli.open_bus() as bus:
        popped = await bus.pop(topic, **options)
        if cli.as_json:
            for one in popped:
                write_json(as_json(one.message) | {"token": _token(one), "lease_ends_at": one.ends_at})
        else:
            _print(cli, popped)


def _print(cli: Cli, popped: Popped) -> None:
    if not popped:
        cli.note("no messages")
    token = ""
    for one in popped:
        if one.token is not None and _token(one) != token:
            token = _token(one) or ""
            say(f"lease {token}, for {duration(one.remaining)}")
        say(line_of(one.message))


def _token(one: Delivery) -> str | None:
    return None if one.token is None else str(one.token)
