"""Text for people: safe to show, since terminals and logs must not obey control characters, and short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime


def visible(text: str) -> str:
    """The text on one line. Characters that are invisible, or that change how others are shown, become escapes.

    These are control characters, line breaks, marks of the writing direction and other formatting, lone surrogates, and
    characters that Unicode has not assigned.
    """
    return text if text.isprintable() else replaced(text, _escaped)


def visible_lines(text: str) -> Iterator[str]:
    """The lines of a text, made visible. The caller indents them, so that none passes for output of Postbus."""
    return (visible(line) for line in text.replace("\r\n", "\n").rstrip("\n").split("\n"))


def replaced(text: str, escaped: Callable[[str], str]) -> str:
    """The text with such characters replaced by their escapes."""
    for one in {one for one in set(text) if not one.isprintable()}:
        text = text.replace(one, escaped(one))
    return text


def last_line(error: str | None) -> str:
    """The last line of an error's text: the error itself, without its traceback."""
    return (error or "").strip().rpartition("\n")[2]


def counted(count: int, what: str) -> str:
    """Such as 1 message, 2 messages."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def moment_text(moment: datetime) -> str:
    """A moment to the second, in its own time zone."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
