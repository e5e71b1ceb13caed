"""Commands that errors and hints name: each exists, with these options and no more arguments than it takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from postbus.cli._app import _app_for

SOURCE = Path(__file__).parents[2] / "src" / "postbus"
_NO_COMMAND = ("from", "import", "schema", "of", "python", "other")
_END = re.compile(r"[,;:)\"`(…]|\.(?=\s|$)|\s(?:or|and|then|which|has|find|shows|counts|does|tells|lists)\b")
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_GLUE = re.compile(r"'\s*\|\|\s*[\w.]+(?:\([^()]*\))?\s*\|\|\s*'")
_END_GLUE = re.compile(r"'\s*\|\|\s*[\w.]+(?:\([^()]*\))?")


@cache
def root_command() -> Any:  # of Click, or of the copy that Typer has of it
    return get_command(_app_for([]))


def _docstrings(tree: ast.AST) -> set[int]:
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }


def _texts_of_python(path: Path) -> Iterator[str]:
    """Yield the strings of a module, with X for the fields of an f-string; docstrings of commands are shown as help."""
    tree = ast.parse(path.read_text())
    left_out = set() if path.parent.name == "cli" else _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


def _texts_of_sql(path: Path) -> Iterator[str]:
    """Yield the literals of a file, with X for what is inserted, but not the SQL that it executes."""
    text = "\n".join(line.partition("--")[0] if "'" not in line.partition("--")[0] else line
                     for line in path.read_text().splitlines())  # fmt: skip
    glued = _END_GLUE.sub("X'", _GLUE.sub("X", text))
    for literal in _LITERAL.findall(glued):
        if not re.match(r"\s*(grant|revoke|select|insert|delete|update|create|drop|alter)\b", literal):
            yield literal.replace("''", "'").replace("%s", "X").replace("%L", "X").replace("%I", "X")


def _named() -> list[tuple[str, str]]:
    """Return each command that is named somewhere, and where."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        if "demo" not in path.relative_to(SOURCE).parts:
            found |= {(one, path.name) for text in _texts_of_python(path) for one in _commands_in(text)}
    for path in sorted((SOURCE / "sql").rglob("*.sql")):
        found |= {(one, path.name) for text in _texts_of_sql(path) for one in _commands_in(text)}
    return sorted(found)


def _commands_in(text: str) -> Iterator[str]:
    before, *parts = re.split(r"(?<![\w./'\"-])postbus (?=--|[a-z])", " ".join(text.split()))
    for part in parts:
        if before.rstrip().rpartition(" ")[2] not in _NO_COMMAND:
            yield _END.split(part)[0].strip()
        before = part


def problem_with(command: str) -> str | None:
    """Return what is wrong with a command, or None if a user can type it."""
    words, here = command.split(), root_command()
    taken: list[str] = []
    known = here
    while words and hasattr(known, "commands"):
        if words[0].startswith("--"):
            break
        inner = known.commands.get(words[0])
        if inner is None:
            return f"there is no command {' '.join([*taken, words[0]])!r}"
        known = inner
        taken.append(words.pop(0))
    flags = {flag: one for one in known.params for flag in (*one.opts, *one.secondary_opts)}
    arguments = sum(one.param_type_name == "argument" and one.nargs == 1 for one in known.params)
    takes_many = any(one.param_type_name == "argument" and one.nargs != 1 for one in known.params)
    given, used = 0, set()
    while words:
        word = words.pop(0)
        if re.match(r"--|-[a-z]", word):
            option = flags.get(word.partition("=")[0])
            if option is None and word not in ("--help", "--X"):
                return f"{' '.join(taken)} has no option {word}"
            used.add(word)
            if option is not None and not option.is_flag and words and not words[0].startswith("--"):
                words.pop(0)
        else:
            given += 1
    if given > arguments and not takes_many:
        return f"{' '.join(taken)} takes {arguments} arguments, and {given} are given"
    missing = [one.opts[0] for one in known.params if one.required and one.param_type_name == "option"]
    if given and (left := [flag for flag in missing if flag not in used]):
        return f"{' '.join(taken)} needs {left[0]}"
    needed = sum(one.required for one in known.params if one.param_type_name == "argument")
    if 0 < given < needed:
        return f"{' '.join(taken)} needs {needed} arguments, and {given} are given"
    return None


NAMED = _named()


@pytest.mark.parametrize(("command", "where"), NAMED, ids=[f"{where}: {command}" for command, where in NAMED])
def test_named_command_exists(command: str, where: str) -> None:
    """A remedy that is a command can be typed as it stands, with names filled in."""
    assert problem_with(command) is None


def test_commands_are_found_in_sql_and_python() -> None:
    """Otherwise the test above would prove nothing."""
    assert {where.rpartition(".")[2] for _, where in NAMED} == {"py", "sql"}
    assert len(NAMED) > 60


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("groups subscribe g t", None),
        ("groups subscribe g t more", "takes 2 arguments"),
        ("groups pause t", "needs 2 arguments"),
        ("groups seek t g", "needs --to"),
        ("groups heal t g", "no command"),
        ("events export m:r -o FILE", None),
        ("events export m:r -q FILE", "no option -q"),
        ("topics create t --semantics PUB_SUB", None),
        ("topics create t --kind PUB_SUB", "no option --kind"),
    ],
)
def test_impossible_command_is_found(command: str, problem: str | None) -> None:
    """It may have an unknown name, an unknown option, or an argument too many."""
    told = problem_with(command)
    assert told is None if problem is None else problem in str(told)
