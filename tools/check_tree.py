"""The shape of the tree: small modules, few private packages with telling names, and no name twice."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_LINES = 400
MOST_PRIVATE_PACKAGES = 14
AT_THE_ROOT = {"_version.py"}
# What the server sends and takes has the names of what it stands for: the two are the sides of a wire.
WIRE = "server"


def problems_in(root: Path) -> Iterator[str]:
    """Find problems of the tree below a folder."""
    package = root / "src" / "postbus"
    for top in ("src", "bench", "faults", "tools", "tests"):
        for path in sorted((root / top).rglob("*.py")):
            count = len(path.read_text("utf-8").splitlines())
            if count > MOST_LINES and (top != "tests" or "support" in path.parts):
                yield f"{path.relative_to(root)} has {count} lines; split it at {MOST_LINES}"
    for path in sorted(package.glob("_*.py")):
        if path.name not in {"__init__.py", *AT_THE_ROOT}:
            yield f"{path.relative_to(root)} is private; put it into a package"
    private = sorted(path.parent.name for path in package.glob("_*/__init__.py"))
    if len(private) > MOST_PRIVATE_PACKAGES:
        yield f"{len(private)} private packages, where {MOST_PRIVATE_PACKAGES} should do: {', '.join(private)}"
    yield from _repeated_classes(package)
    yield from _repeated_test_files(root)


def _repeated_classes(package: Path) -> Iterator[str]:
    defined: dict[str, set[str]] = defaultdict(set)
    for path in sorted(package.rglob("*.py")):
        within = path.relative_to(package)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined[node.name].add(WIRE if within.parts[0] == WIRE else str(within))
    for name, places in sorted(defined.items()):
        if len(places - {WIRE}) > 1:
            yield f"class {name} is in {' and in '.join(sorted(places))}"


def _repeated_test_files(root: Path) -> Iterator[str]:
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted((root / "tests").rglob("test_*.py")):
        tests[path.name].append(str(path.parent.relative_to(root)))
    for name, folders in sorted(tests.items()):
        if len(folders) > 1:
            yield f"{name} is in {' and in '.join(folders)}; pytest imports only one of them"


def main() -> int:
    problems = list(problems_in(ROOT))
    print("\n".join(problems) or "tree: ok")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
