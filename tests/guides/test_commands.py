"""Commands in the README and the guides can be typed as they are printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from guides.pages import DOCS, PAGES, blocks
from unit.test_commands_in_remedies import problem_with, root_command


def _commands() -> Iterator[tuple[str, str]]:
    """Each command of `postbus` in a block of a page, without that word, and where it is."""
    for block in blocks("console", "sh"):
        text = block.text.replace("\\\n", " ")
        for line in re.findall(r"^(?:\$ )?postbus (.*)$", text, re.MULTILINE):
            words = shlex.split(line.partition("  #")[0])
            yield " ".join(re.sub(r"\s", "_", word) for word in words if word != "\\"), str(block)


def _inline() -> Iterator[tuple[str, str]]:
    """The same of commands within the text."""
    for page in PAGES:
        for found in re.findall(r"`postbus ([a-z][^`\n]*)`", page.read_text("utf-8")):
            yield re.sub(r"'[^']*'|\{[^}]*\}|<[^>]*>", "X", found).replace("…", "X"), page.name


@pytest.mark.parametrize(("command", "where"), sorted({*_commands(), *_inline()}))
def test_command_can_be_typed(command: str, where: str) -> None:
    """It exists, has these options, and takes this many arguments."""
    assert problem_with(command) is None, where


def test_the_page_of_commands_lists_each_of_them() -> None:
    """docs/cli.md names every command, and no other."""
    listed = re.findall(r"^\| `postbus (.+?)` \|", (DOCS / "cli.md").read_text("utf-8"), re.MULTILINE)
    there = set(_leaves(root_command(), ())) | {"sweep --forever"}
    assert sorted(listed) == sorted(there)


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield " ".join(path)
        return
    for name, inner in command.commands.items():
        yield from _leaves(inner, (*path, name))
