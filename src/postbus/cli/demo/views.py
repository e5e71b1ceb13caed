"""How the demo looks: live in a terminal, as lines elsewhere, as JSON for programs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from rich.box import ROUNDED
from rich.console import Console, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from postbus._runtime.visible_text import visible
from postbus.cli._render import write_json
from postbus.cli._say import say
from postbus.cli.demo.shop import EVENTS, GROUPS, TOPICS
from postbus.cli.demo.stage import DemoView
from postbus.cli.demo.tally import Event, Tally

_STATES = ("waiting", "leased", "delayed", "dead")
_NARROW = 90  # columns below which parts are left out


def view_for(*, as_json: bool, title: str, target: str) -> DemoView:
    """The view for this kind of stdout. `target` holds the options that other commands need."""
    if as_json:
        return JsonLines()
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, title, target)
    return PlainLines()


def figures(tally: Tally) -> dict[str, Any]:
    """The demo in numbers."""
    published, handled, _ = tally.rates()
    return {
        "seconds": round(tally.seconds, 1),
        "published_per_second": published.total(),
        "handled_per_second": handled.total(),
        **{state: tally.count_in(state) for state in _STATES},
        "workers": len(tally.workers),
        "lag": {name: int(group.lag or 0) for name, group in tally.groups.items()},
        "passed": {name: int(group.passed or 0) for name, group in tally.groups.items()},
        "processed": {name: int(group.processed or 0) for name, group in tally.groups.items()},
        "orders": tally.committed,
        "rolled_back": tally.rolled_back,
        "messages_of_rolled_back_orders": tally.ghosts,
        "published": tally.published.total(),
        "handled": tally.handled.total(),
        "retried": tally.retried,
        "dead_letters": tally.dead,
    }


class PlainLines(AbstractContextManager[None]):
    """A line per second."""

    every = 1.0

    def show(self, tally: Tally) -> None:
        now = figures(tally)
        behind = ", ".join(f"{name} {count}" for name, count in now["lag"].items())
        say(
            "{seconds:>5.0f}s  published {published_per_second}/s  handled {handled_per_second}/s  "
            "waiting {waiting}  leased {leased}  delayed {delayed}  dead {dead}  retried {retried}  "
            "rolled back {rolled_back}  workers {workers}".format(**now)
            + f"  lag {behind or '-'}"
        )

    def __exit__(self, *error: object) -> None:
        pass


class JsonLines(AbstractContextManager[None]):
    """An object per second."""

    every = 1.0

    def show(self, tally: Tally) -> None:
        write_json(figures(tally))

    def __exit__(self, *error: object) -> None:
        pass


class LiveView(AbstractContextManager[None]):
    """Fills the terminal, whatever its size is at the moment."""

    every = 0.25

    def __init__(self, console: Console, title: str, target: str) -> None:
        self._console = console
        commands = f"postbus topics list{target}, postbus groups list{target}"
        self._headline = f"{visible(title)}\nin another terminal: {visible(commands)}"
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, tally: Tally) -> None:
        width, height = self._console.size
        self._live.update(_screen(self._headline, tally, width, height), refresh=True)


def _screen(headline: str, tally: Tally, width: int, height: int) -> RenderableType:
    """As many parts as there is room for, the most important first."""
    parts = [
        Layout(_header(headline, tally), size=3),
        Layout(_topics(tally), size=len(TOPICS) + 4),
    ]
    room = height - sum(part.size or 0 for part in parts)
    if room >= len(GROUPS) + 5:
        parts.append(Layout(_groups(tally), size=len(GROUPS) + 5))
        room -= len(GROUPS) + 5
    if room >= 7:
        middle = Layout(size=7)
        middle.split_row(*([] if width < _NARROW else [Layout(_workers(tally))]), Layout(_orders(tally)))
        parts.append(middle)
        room -= 7
    if room >= 4:
        bottom = Layout()
        shown = [_event_list("what happened", list(tally.events), room - 2)]
        if width >= _NARROW:
            shown.append(_event_list("dead letters", list(tally.dead_letters), room - 2))
        bottom.split_row(*(Layout(part) for part in shown))
        parts.append(bottom)
    screen = Layout()
    screen.split_column(*parts)
    return screen


def _header(headline: str, tally: Tally) -> Text:
    clock = str(timedelta(seconds=int(tally.seconds)))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("Postbus demo ", style="bold")
    text.append(f"{clock}  Ctrl-C ends it\n")
    text.append(headline, style="dim")
    return text


def _topics(tally: Tally) -> Table:
    published, handled, _ = tally.rates()
    table = Table(box=ROUNDED, expand=True, header_style="bold")
    table.add_column("topic", no_wrap=True)
    for column in ("in/s", "out/s", *_STATES):
        table.add_column(column, justify="right", no_wrap=True)
    held = {topic.name: topic for topic in tally.topics}
    for name in TOPICS:
        counts = [getattr(held.get(name), state, 0) for state in _STATES]
        dead = Text(str(counts.pop()), style="red")
        table.add_row(name, str(published[name]), str(handled[name]), *map(str, counts), dead)
    return table


def _groups(tally: Tally) -> Table:
    *_, passed = tally.rates()
    table = Table(box=ROUNDED, expand=True, header_style="bold", title=f"groups of {EVENTS}", title_justify="left")
    table.add_column("group", no_wrap=True)
    for column in ("done/s", "done", "lag", "retrying", "parked", "lanes"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in GROUPS:
        known = tally.groups.get(name)
        counts = [getattr(known, count, 0) for count in ("passed", "lag", "retrying", "parked", "lanes_held")]
        table.add_row(name, str(passed[name]), *map(str, counts))
    return table


def _workers(tally: Tally) -> Panel:
    lines = [visible(f"{one.name}  pid {one.pid}") for one in tally.workers]
    hint = Text("kill -9 one: its messages come back", style="dim")
    return _panel("workers", [*map(Text, lines[:4]), hint])


def _orders(tally: Tally) -> Panel:
    return _panel(
        "orders",
        [
            Text(f"{tally.committed} committed with their messages"),
            Text(f"{tally.rolled_back} rolled back; seen of their messages: {tally.ghosts}"),
            Text(f"{tally.handled.total()} messages handled"),
            Text(f"{tally.retried} tried again after an error"),
            Text(f"{tally.dead} given up: dead letters", style="red"),
        ],
    )


def _event_list(title: str, events: list[Event], room: int) -> Panel:
    lines = [
        Text.assemble((f"{event.at:%H:%M:%S} ", "dim"), (f"{visible(event.who)} ", "cyan"), visible(event.what))
        for event in events[-room:]
    ]
    return _panel(title, lines)


def _panel(title: str, lines: list[Text]) -> Panel:
    text = Text("\n", no_wrap=True, overflow="ellipsis").join(lines)
    text.no_wrap, text.overflow = True, "ellipsis"
    return Panel(text, title=title, title_align="left", box=ROUNDED)


def write_summary(tally: Tally, *, as_json: bool, target: str) -> None:
    """Sum up the demo when it has ended."""
    done = figures(tally)
    if as_json:
        write_json({"summary": done})
        return
    left = ", ".join(f"{done[state]} {state}" for state in _STATES)
    lines = (
        f"In {done['seconds']:.0f} s:",
        f"  {done['orders']} orders were committed with their messages,",
        f"  {done['rolled_back']} were rolled back; {tally.ghosts} of their messages were delivered,",
        f"  groups read {EVENTS} independently, and handled {_each(done['processed'])}: postbus groups list{target}",
        f"  {done['published']} messages published, {done['handled']} handled, {done['retried']} retried,",
        f"  {done['dead_letters']} became dead letters: postbus dead-letters list{target}",
        f"  still there: {left}",
    )
    for line in lines:
        say(line)


def _each(handled: dict[str, int]) -> str:
    return ", ".join(f"{count} ({name})" for name, count in handled.items()) or "nothing: there are no groups"
