"""postbus tail"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from postbus._admin.tail import TailMessage, TopicTail
from postbus.cli._arguments import Topic
from postbus.cli._command import Cli
from postbus.cli._render import message_json, message_line, payload_line, write_json
from postbus.cli._say import say
from postbus.errors import DatabaseUnavailable
from postbus.results import QueueMessage

_EVERY = 0.25


async def tail(
    cli: Cli,
    topic: Topic,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the oldest message.")] = False,
    count: Annotated[
        int, typer.Option("-n", min=0, max=1_000_000, help="Begin with this many of the newest messages.")
    ] = 10,
    once: Annotated[bool, typer.Option("--once", help="Show the existing messages and end.")] = False,
) -> None:
    """Follow a topic without consuming: one line per message, until Ctrl-C.

    It looks four times a second. It misses messages of a QUEUE that are consumed in between, unless the topic keeps
    finished messages (--retention). It shows all messages of a PUB_SUB topic, whatever its groups do.
    """
    async with cli.open_bus() as bus:
        is_log = await bus.admin.semantics(topic) == "PUB_SUB"
        tail_of_topic = TopicTail(bus.connect, topic, is_log=is_log)
        async for one in tail_of_topic.all_messages() if from_start else tail_of_topic.newest(count):
            _write(cli, one)
        while not once:
            await asyncio.sleep(_EVERY)
            try:
                async for one in tail_of_topic.new_messages():
                    _write(cli, one)
            except DatabaseUnavailable as error:
                cli.note(f"{error.message}; trying again")
                await asyncio.sleep(2)


def _write(cli: Cli, message: TailMessage) -> None:
    if cli.as_json:
        write_json(message_json(message))
        return
    payload = payload_line(message.payload, message.content_type)
    remark = message.state if isinstance(message, QueueMessage) else f"lane {message.lane}"
    line = message_line(message_id=message.id, at=message.published_at, key=message.key, remark=remark, payload=payload)
    say(line)
