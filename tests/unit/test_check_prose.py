"""The checker of pages and docstrings reports violations with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_prose import MOST_LINES, findings, main


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def found(root: Path) -> list[str]:
    return [f"{path.relative_to(root)}:{line}: {problem}" for path, line, problem in findings(root)]


def test_long_readme_is_reported(tmp_path: Path) -> None:
    """A README of 150 lines passes, and one of 151 does not."""
    write(tmp_path, "README.md", "line\n" * MOST_LINES)
    assert found(tmp_path) == []

    write(tmp_path, "README.md", "line\n" * (MOST_LINES + 1))
    assert found(tmp_path) == ["README.md:151: has 151 lines; at most 150: move details into docs/"]


def test_broken_links_are_reported(tmp_path: Path) -> None:
    """A link must lead to a file and to a heading of it; addresses and code are not links."""
    write(
        tmp_path, "docs/other.md", "# `postbus up`: what's new?\n\n## Twice\n\n## Twice\n\n```sh\n# no heading\n```\n"
    )
    write(
        tmp_path,
        "docs/page.md",
        "# Page\n\n[a](other.md#postbus-up-whats-new) [b](other.md#twice-1) [c](#page) [d](https://example.org/x)\n"
        "`[code](nowhere.md)`\n```md\n[code](nowhere.md)\n```\n"
        "[gone](gone.md)\n[no heading](other.md#no-heading) and [none](#none)\n",
    )

    assert found(tmp_path) == [
        "docs/page.md:8: links to gone.md, which does not exist",
        "docs/page.md:9: links to other.md#no-heading, and other.md has no such heading",
        "docs/page.md:9: links to #none, and page.md has no such heading",
    ]


def test_vague_docstrings_are_reported(tmp_path: Path) -> None:
    """Docstrings of modules, classes and functions begin with a subject or a verb."""
    write(
        tmp_path,
        "tools/module.py",
        '"""What is here."""\n\n\nclass Waiter:\n    """Waits."""\n\n    name = ""\n    """Whose it is."""\n\n'
        '    def wait(self) -> None:\n        """Who waits."""\n\n'
        '    async def end(self) -> None:\n        """\n        That it ends.\n        """\n',
    )

    assert found(tmp_path) == [
        "tools/module.py:1: has a docstring that begins with 'What': name the subject",
        "tools/module.py:8: has a docstring that begins with 'Whose': name the subject",
        "tools/module.py:11: has a docstring that begins with 'Who': name the subject",
        "tools/module.py:14: has a docstring that begins with 'That': name the subject",
    ]


def test_builds_and_hidden_folders_are_skipped(tmp_path: Path) -> None:
    """Pages of packages and of builds are not ours."""
    for folder in (".venv/lib", "build", "node_modules/package"):
        write(tmp_path, f"{folder}/page.md", "[gone](gone.md)")
    assert found(tmp_path) == []


def test_exit_code_tells_whether_something_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is 1 with a line for each finding, and 0 without one."""
    assert main(tmp_path) == 0
    write(tmp_path, "README.md", "[gone](gone.md)\n")
    assert main(tmp_path) == 1
    assert capsys.readouterr().out == "README.md:1: links to gone.md, which does not exist\n"
