"""The checker of the tree reports what has the wrong shape."""

from __future__ import annotations

from pathlib import Path

from tools.check_tree import ROOT, problems_in


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_modules_and_classes_of_the_wrong_shape_are_reported(tmp_path: Path) -> None:
    """Each rule is broken once, and each is reported with its place."""
    package = tmp_path / "src" / "postbus"
    _write(package / "long.py", "x = 1\n" * 401)
    _write(package / "_lonely.py")
    _write(package / "one.py", "class Twice: ...\nclass OnTheWire: ...\n")
    _write(package / "two.py", "class Twice: ...\n")
    _write(package / "server" / "views.py", "class OnTheWire: ...\n")
    _write(tmp_path / "tests" / "api" / "test_bus.py")
    _write(tmp_path / "tests" / "flow" / "test_bus.py")
    for n in range(15):
        _write(package / f"_p{n:02}" / "__init__.py")

    assert [problem.partition(";")[0][:60] for problem in problems_in(tmp_path)] == [
        "src/postbus/long.py has 401 lines",
        "src/postbus/_lonely.py is private",
        "15 private packages, where 14 should do: _p00, _p01, _p02, _",
        "class Twice is in one.py and in two.py",
        "test_bus.py is in tests/api and in tests/flow",
    ]


def test_the_tree_is_the_one_that_the_checker_looks_at() -> None:
    """The checker looks at this repository."""
    assert (ROOT / "src" / "postbus" / "bus.py").exists()
