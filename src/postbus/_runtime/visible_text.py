"""Text that terminals and logs show, and do not obey."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def visible(text: str) -> str:
    """A text on one line. Characters that are not seen, or that change what is seen, become escapes.

    These are control characters, line breaks, marks of the writing direction and other formatting, lone surrogates, and
    what Unicode has not assigned.
    """
    return text if text.isprintable() else replaced(text, _escaped)


def visible_lines(text: str) -> Iterator[str]:
    """The lines of a text that has several. The caller indents them, so that none passes for a line of ours."""
    return (visible(line) for line in text.replace("\r\n", "\n").rstrip("\n").split("\n"))


def replaced(text: str, escaped: Callable[[str], str]) -> str:
    """A text with such characters replaced by their escapes."""
    for one in {one for one in set(text) if not one.isprintable()}:
        text = text.replace(one, escaped(one))
    return text


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
