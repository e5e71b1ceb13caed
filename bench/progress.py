"""The progress of a run, on standard error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self


class Progress:
    """A bar with the name of the current part (`shown`), a line with that name (`told`), or nothing.

    It is drawn between parts only, since a drawing thread would slow down the measurement.
    """

    def __init__(self, parts: int, *, shown: bool, told: bool = False) -> None:
        self._parts = parts
        self._shown = shown
        self._told = told
        self._begun = 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
            self._task = self._bar.add_task("starting", total=self._parts)
            self._bar.start()
        return self

    def begin(self, part: str) -> None:
        """Show that a part begins."""
        self._begun += 1
        if self._told:
            print(f"{self._begun}/{self._parts} {part}", file=sys.stderr, flush=True)
        if self._bar is not None:
            self._bar.update(self._task, description=part)
            self._bar.refresh()

    def end(self) -> None:
        """Show that it is done."""
        if self._bar is not None:
            self._bar.advance(self._task)
            self._bar.refresh()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
