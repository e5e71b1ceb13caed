"""postbus messages …"""

from __future__ import annotations

from typing import Any

from postbus._runtime.visible_text import last_line
from postbus.cli._arguments import MessageId, Topic
from postbus.cli._command import Cli, command, group
from postbus.cli._render import message_json, payload_lines, write_facts, write_json, write_table
from postbus.cli._say import say, say_block
from postbus.results import DeliveryInfo, MessageInfo, MessageStory, QueueMessage

app = group("messages", "Show single messages: where they are, who has them, and which groups are done.")


@command(app, "show")
async def show(cli: Cli, topic: Topic, message_id: MessageId) -> None:
    """Show a message: its content, where it is, and its state at each group."""
    async with cli.open_bus() as bus:
        row = await bus.admin.message(topic, message_id)
    if cli.as_json:
        write_json(message_json(row))
        return
    facts = _of_log(row) if isinstance(row, MessageStory) else _of_queue(row)
    write_facts({name: value for name, value in facts.items() if value is not None and value != ""})
    if isinstance(row, MessageStory) and row.deliveries:
        say()
        _write_deliveries(row.deliveries)
    say()
    say("payload")
    say_block(payload_lines(row.payload, row.content_type))


def _common(row: MessageInfo) -> dict[str, Any]:
    names = ("topic", "id", "event_id", "key", "published_at", "correlation_id", "content_type")
    return {name: getattr(row, name) for name in names} | {
        "headers": ", ".join(f"{name}={value}" for name, value in row.headers.items())
    }


def _of_queue(row: QueueMessage) -> dict[str, Any]:
    when = {"scheduled": "due", "retrying": "due", "leased": "lease ends", "finished": "finished", "dead": "died"}
    return _common(row) | {
        "state": row.state,
        when.get(row.state, "at"): row.at,
        "attempts": row.attempts,
        "priority": row.priority,
        "by": row.member,
        "error": last_line(row.last_error),
    }


def _of_log(row: MessageStory) -> dict[str, Any]:
    return _common(row) | {
        "lane": row.lane,
        "retained": None if row.retained else "no: the log has dropped it, and these groups have copies",
        "status": row.status,
        "required": ", ".join(row.required) or "for nobody",
        "completed": ", ".join(row.completed),
        "settled": row.settled_at,
    }


def _write_deliveries(deliveries: list[DeliveryInfo]) -> None:
    write_table(
        ["group", "status", "required", "settled", "by", "attempts", "in the lane of", "error"],
        [
            [
                one.group_name,
                one.status,
                one.required,
                one.settled_at,
                one.worker,
                one.attempts,
                one.holder,
                last_line(one.last_error),
            ]
            for one in deliveries
        ],
        right=("attempts",),
    )
