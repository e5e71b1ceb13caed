"""Charts: lines for series, and bars for systems beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.paper import words
from bench.paper.scales import Scale, parameter_axis, values_axis
from bench.paper.svg import COLOURS, Drawing
from bench.series import Series

_WIDTH, _HEIGHT = 720, 380
_LEFT, _TOP, _BOTTOM = 74, 48, 58
_LETTER = 6.6  # pixels, about
_MOST_MARKS = 12
_LABEL_ROOM = 16


def line_chart(title: str, lines: Sequence[Series], labels: Sequence[str]) -> str:
    """A chart of series with the same parameter and unit."""
    right = 38 + _LETTER * max(map(len, labels))
    drawing = Drawing(_WIDTH, _HEIGHT, title)
    x = parameter_axis([at for line in lines for at, _ in line.points], _LEFT, _WIDTH - right)
    y = values_axis([value for line in lines for _, value in line.points], _HEIGHT - _BOTTOM, _TOP)
    drawing.text(16, 27, title, kind="title")
    _axes(drawing, x, y, words.parameter(lines[0].parameter), words.unit(lines[0].unit))
    ends: list[tuple[float, int]] = []
    for number, line in enumerate(lines):
        kind = f"c{number % COLOURS}"
        places = [(x.at(at), y.at(value)) for at, value in line.points]
        drawing.path(places, kind=kind)
        if len(places) <= _MOST_MARKS:
            for place in places:
                drawing.mark(*place, kind=kind, shape=number)
        else:
            drawing.mark(*places[-1], kind=kind, shape=number)
        ends.append((places[-1][1], number))
    ends.sort()
    for (_, number), height in zip(ends, _apart([height for height, _ in ends]), strict=True):
        drawing.text(_WIDTH - right + 12, height + 4, labels[number], kind=f"c{number % COLOURS}")
    return str(drawing)


def bar_chart(title: str, values: Mapping[str, float], unit: str, *, ours: Sequence[str]) -> str:
    """A chart of bars from the top down. Those of `ours` have another colour."""
    ordered = list(values.items())
    left = 32 + _LETTER * max(len(words.plain(name)) for name in values)
    row = 26
    height = _TOP + row * len(ordered) + 44
    drawing = Drawing(_WIDTH, height, title)
    scale = values_axis([*values.values(), 0.0], left, _WIDTH - 84)
    drawing.text(16, 27, title, kind="title")
    for tick in scale.ticks:
        drawing.line(scale.at(tick), _TOP, scale.at(tick), height - 40, kind="grid")
        drawing.text(scale.at(tick), height - 24, words.short(tick), kind="muted", anchor="middle")
    drawing.text((left + _WIDTH - 84) / 2, height - 8, words.unit(unit), kind="muted", anchor="middle")
    for number, (name, value) in enumerate(ordered):
        top = _TOP + row * number + 4
        drawing.bar(left, top, scale.at(value) - left, row - 8, kind="c0" if name in ours else "c6")
        drawing.text(left - 8, top + 13, words.plain(name), anchor="end")
        drawing.text(scale.at(value) + 6, top + 13, words.full(value), kind="muted")
    return str(drawing)


def _axes(drawing: Drawing, x: Scale, y: Scale, x_name: str, y_name: str) -> None:
    for tick in y.ticks:
        drawing.line(x.begin, y.at(tick), x.end, y.at(tick), kind="grid")
        drawing.text(x.begin - 8, y.at(tick) + 4, words.short(tick), kind="muted", anchor="end")
    drawing.line(x.begin, y.begin, x.end, y.begin, kind="axis")
    for tick in x.ticks:
        drawing.line(x.at(tick), y.begin, x.at(tick), y.begin + 5, kind="axis")
        drawing.text(x.at(tick), y.begin + 19, words.short(tick), kind="muted", anchor="middle")
    middle = (x.begin + x.end) / 2
    drawing.text(middle, drawing.height - 14, x_name + _kind(x), kind="muted", anchor="middle")
    drawing.text(20, (y.begin + y.end) / 2, y_name + _kind(y), kind="muted", anchor="middle", turned=True)


def _kind(scale: Scale) -> str:
    return " (log)" if scale.is_log else ""


def _apart(heights: Sequence[float]) -> list[float]:
    """Heights for labels, from the top down: near their lines, but without overlap."""
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + _LABEL_ROOM) if places else height)
    lowest = float(_HEIGHT - _BOTTOM + 6)
    for number in range(len(places) - 1, -1, -1):
        places[number] = min(places[number], lowest)
        lowest = places[number] - _LABEL_ROOM
    return places
