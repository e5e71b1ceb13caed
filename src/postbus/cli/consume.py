"""postbus consume"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from typing import Annotated

import typer

from postbus._consumers.group_control import GroupControl
from postbus._runtime.visible_text import counted
from postbus._wakeup.waiters import Wakers
from postbus.bus import Bus
from postbus.catch_up import CatchUp
from postbus.cli._arguments import Key, Namespace, Task, TopicOrPattern
from postbus.cli._command import Cli
from postbus.cli._exec import CommandMissing, Executor
from postbus.cli._exits import INTERRUPTED, OK, CommandError, refusal, usage_error
from postbus.cli._inputs import as_duration, as_start
from postbus.cli._logging import LogFormat, configure_logging
from postbus.cli._render import decoded, line_of, write_json
from postbus.cli._say import say
from postbus.cli.groups import told_start
from postbus.cli.scopes import scope_of
from postbus.errors import TopicNotFound
from postbus.group import Group
from postbus.message import Ack, Message, Outcome, Release
from postbus.scope import Scope
from postbus.start import Start
from postbus.subscription import Handler, Subscription
from postbus.worker import Worker

Work = Callable[[Message], Awaitable[Outcome]]


class CatchUpPace(Enum):
    """The presets of a catch-up."""

    CONSERVATIVE = "conservative"
    DEFAULT = "default"
    AGGRESSIVE = "aggressive"

    def as_catch_up(self) -> CatchUp:
        match self:
            case CatchUpPace.CONSERVATIVE:
                return CatchUp.conservative()
            case CatchUpPace.AGGRESSIVE:
                return CatchUp.aggressive()
            case CatchUpPace.DEFAULT:
                return CatchUp()


_NAME = "postbus consume"
_DROPS_WITHIN = 0.1


async def consume(
    cli: Cli,
    *,
    topic: TopicOrPattern = None,
    execute: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this in a shell for each message, with the payload on stdin and POSTBUS_ID, "
            "POSTBUS_EVENT_ID, POSTBUS_TOPIC, POSTBUS_KEY, POSTBUS_ATTEMPT and POSTBUS_HEADERS (JSON) in its "
            "environment. Exit code 0: done; 65: dead letter; any other: try again. Stderr is the error.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Consume a PUB_SUB topic for this group. A new group is subscribed."),
    ] = None,
    key: Key = None,
    namespace: Namespace = None,
    task: Task = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Where a new group begins: now (the default), beginning, a message's id, a time, or how long ago: 2h.",
        ),
    ] = None,
    catch_up: Annotated[
        CatchUpPace | None, typer.Option("--catch-up", help="How fast a group works through its history.")
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", min=0, help="Read only the newest messages of the history; skip older ones."),
    ] = None,
    max_count: Annotated[int | None, typer.Option("--max", min=1, help="End after this many messages.")] = None,
    idle: Annotated[
        str | None, typer.Option(metavar="DURATION", help="End if no message arrives for this long.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1000, help="How many messages are handled at the same time.")
    ] = 1,
) -> int:
    """Consume a topic: print each message and ack it, or hand it to a command.

    When this ends, the group keeps its position, until you cancel it: postbus groups cancel.
    Ctrl-C lets messages in hand finish; a second Ctrl-C does not wait for them.
    """
    if topic is None and namespace is None and task is None:
        raise usage_error(
            "there is nothing to consume", remedy="name a topic, or give --namespace or --task with --group"
        )
    scope = Scope.of(topic, key=key, namespace=namespace, task=task)
    if scope.is_recorded and group is None:
        raise usage_error("patterns, --key, --namespace and --task are for groups", remedy="add --group NAME")
    if start is not None and group is None:
        raise usage_error("--from is for groups", remedy="add --group NAME, on a PUB_SUB topic")
    if (catch_up is not None or max_messages is not None) and group is None:
        raise usage_error("--catch-up and --max-messages are for groups", remedy="add --group NAME, on a PUB_SUB topic")
    history = (catch_up or CatchUpPace.DEFAULT).as_catch_up()
    if max_messages is not None:
        history = replace(history, max_messages=max_messages)
    given = None if start is None else as_start(start, name="--from")
    longest_wait = as_duration(idle, name="--idle")
    configure_logging("WARNING", LogFormat.JSON if cli.as_json else LogFormat.TEXT)
    async with cli.open_bus() as bus:
        if scope.topic is not None:
            await _check_topic(cli, bus, scope.topic, group)
        work = Executor(execute, cli.as_json).run if execute else Printer(cli, tells_topic=scope.is_wide).run
        begin = given or Start.NOW
        if scope.is_recorded:
            begin = begin.recorded(is_wide=scope.is_wide)
        consumer = _Consumer(bus, scope, work, max_count, concurrency, group=group, start=begin, catch_up=history)
        if group is not None:
            await _tell_of_group(cli, bus, scope, group, given)
        await consumer.run(None if longest_wait is None else longest_wait.total_seconds())
    cli.note(f"handled {counted(consumer.handled, 'message')}")
    return INTERRUPTED if consumer.worker.was_aborted else OK


async def _check_topic(cli: Cli, bus: Bus, topic: str, group: str | None) -> None:
    """Refuse a topic that cannot be consumed in this way."""
    try:
        is_log = await bus.admin.semantics(topic) == "PUB_SUB"
    except TopicNotFound as error:
        if group is not None:
            remedy = f"create it: postbus topics create {topic} --semantics PUB_SUB"
            raise TopicNotFound(error.message, remedy=remedy) from None
        cli.note(f"nothing has been published to {topic} yet; waiting")
        return
    if is_log and group is None and not (await bus.admin.topic(topic)).in_queue:
        raise refusal(
            f"topic {topic!r} is PUB_SUB: it is consumed by groups",
            remedy=f"name a group: postbus consume {topic} --group NAME; or only look: postbus tail {topic}",
        )
    if not is_log and group is not None:
        raise refusal(
            f"topic {topic!r} is a QUEUE, and has no groups",
            remedy="omit --group; or make it PUB_SUB, with its messages: "
            f"postbus topics migrate {topic} --to PUB_SUB --group {group}",
        )


async def _tell_of_group(cli: Cli, bus: Bus, scope: Scope, group: str, start: Start | None) -> None:
    """Say where the group begins, or what keeps messages from it."""
    topic = scope.topic
    if topic is None:
        if not any(scope_of(row) == scope for row in await bus.admin.scopes(group)):
            cli.note(f"{group} is new on {scope}, and begins {told_start(start or Start.NOW)}, also in later topics")
        elif start is not None:
            cli.note(
                f"{group} goes on at its position in each topic; to see where it began: postbus groups scopes {group}"
            )
        return
    known = await bus.admin.groups(topic, group)
    if not known:
        cli.note(f"{group} is new on {topic}, and begins {told_start(start or Start.NOW)}")
    elif known[0].waits_for_queue:
        cli.note(f"{group} waits until the queue of {topic} is empty: postbus topics migrate {topic} --to PUB_SUB")
    elif known[0].state == "PAUSED":
        cli.note(f"{group} is paused; to resume it: postbus groups resume {topic} {group}")
    elif start is not None:
        cli.note(f"{group} goes on at its position; to move it: postbus groups seek {topic} {group} --to POSITION")


class _Consumer:
    """A worker of one subscription that ends after enough messages, or when it is idle."""

    def __init__(
        self,
        bus: Bus,
        scope: Scope,
        work: Work,
        max_count: int | None,
        concurrency: int,
        *,
        group: str | None,
        start: Start,
        catch_up: CatchUp,
    ) -> None:
        async def handler(message: Message) -> Outcome:
            return await self._handle(message)

        def subscribe(name: str, handler: Handler) -> Subscription:
            return Subscription(topic=str(scope), handler=handler, name=name, concurrency=concurrency, limit=max_count)

        if group is None:
            self.worker = Worker(bus.dsn, [subscribe(_NAME, handler)], wakers=Wakers())
        else:
            control = GroupControl(bus.connect, bus.default, lambda: self.worker)
            members = Group(control, group, scope, subscribe, catch_up=catch_up)
            members.add_member(_NAME, handler)
            self.worker = Worker(bus.dsn, [], groups=[(members, start)], wakers=Wakers())
        self.handled = 0
        self._is_group = group is not None
        self._work = work
        self._max_count = max_count
        self._begun = 0
        self._running = 0
        self._busy_at = time.monotonic()
        self._failure: Exception | None = None

    async def run(self, idle: float | None) -> None:
        """Consume until there is a reason to end. Raises an error that would fail every message."""
        self._busy_at = time.monotonic()
        watcher = None if idle is None else asyncio.create_task(self._stop_when_idle(idle))
        try:
            await self.worker.run()
        finally:
            if watcher is not None:
                watcher.cancel()
        if self._failure is not None:
            raise self._failure

    async def _handle(self, message: Message) -> Outcome:
        if self._begun == self._max_count:
            await self._until_dropped()
            return Release()
        self._begun += 1
        self._running += 1
        try:
            outcome = await self._work(message)
        except (BrokenPipeError, CommandMissing) as error:
            # This is not the message's fault.
            self._failure = error if isinstance(error, BrokenPipeError) else _told(error)
            self._stop()
            return Release()
        except Exception:
            self._begun -= 1  # it is tried again
            raise
        finally:
            self._running -= 1
            self._busy_at = time.monotonic()
        self.handled += 1
        if self.handled == self._max_count:
            self._stop()
            await self._until_dropped()
        return outcome

    async def _until_dropped(self) -> None:
        """Wait until the worker of a group has dropped the messages that it read ahead, so that none of them begins."""
        may_end = not self._is_group
        while not may_end:
            may_end = self.worker.is_stopping
            await asyncio.sleep(_DROPS_WITHIN)

    async def _stop_when_idle(self, seconds: float) -> None:
        left = seconds
        while left > 0:
            await asyncio.sleep(left)
            left = seconds if self._running else self._busy_at + seconds - time.monotonic()
        self._stop()

    def _stop(self) -> None:
        if not self.worker.is_stopping:  # a second stop would abort handlers that still run
            self.worker.stop()


def _told(error: CommandMissing) -> CommandError:
    return CommandError(str(error), remedy="correct --exec; the message is back in its topic, as it was")


class Printer:
    """Writes messages to stdout."""

    def __init__(self, cli: Cli, *, tells_topic: bool = False) -> None:
        self._as_json = cli.as_json
        self._tells_topic = tells_topic
        self._turn = asyncio.Lock()

    async def run(self, message: Message) -> Outcome:
        # In a thread: a slow reader must not keep us from extending the leases.
        async with self._turn:
            await asyncio.to_thread(self._write, message)
        return Ack()

    def _write(self, message: Message) -> None:
        if self._as_json:
            write_json(as_json(message))
            return
        say(line_of(message, tells_topic=self._tells_topic))


def as_json(message: Message) -> dict[str, object]:
    """A consumed message, for JSON."""
    payload = decoded(message.payload, message.content_type)
    return {
        "id": message.id,
        "event_id": message.event_id,
        "topic": message.topic,
        "key": message.key,
        "attempt": message.attempt,
        "priority": message.priority,
        "published_at": message.published_at,
        "correlation_id": message.correlation_id,
        "content_type": message.content_type,
        "headers": dict(message.headers),
        "payload_base64" if isinstance(payload, bytes) else "payload": payload,
    }
