"""Making text safe to show: terminals and logs must not obey control characters in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator


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


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
