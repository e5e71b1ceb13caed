"""Imports go downwards, or sideways within a layer; never upwards, and never in a circle."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "postbus"

# A name stands for the module or for the whole package.
LAYERS = (
    "cli › server › __init__ › bus, http_client › relay › _consumers › admin, worker, pull, inbox "
    "› _admin, _pull › _group, _queue › _maintenance, _publish › _handling, _wakeup › _db › _drivers "
    "› values › _runtime › errors"
)
VALUES = (
    "_content _embedded _version catch_up embedded events group health message middleware options results retry scope "
    "start subscription sweeping"
)
LEVEL = {
    name: level
    for level, layer in enumerate(LAYERS.split(" › "))
    for name in (VALUES.split() if layer == "values" else layer.split(", "))
}


def imported(tree: ast.AST) -> Iterator[str]:
    """The dotted names of postbus that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "postbus":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("postbus."))


def layer_of(name: str) -> str:
    """The module or package below postbus that a dotted name lies in."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else "__init__"


def module_of(name: str, modules: dict[str, ast.Module]) -> str:
    """The module that a dotted name lies in: `postbus._db.pool.Slots` lies in `postbus._db.pool`."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def executed(tree: ast.Module) -> ast.Module:
    """The nodes that run when a module is imported: no bodies of functions, nothing for type checkers."""
    body = [
        node
        for node in tree.body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"))
    ]
    return ast.Module(body, [])


def circle_in(uses: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, if there are any."""
    done: set[str] = set()
    way: list[str] = []

    def follow(module: str) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        way.append(module)
        for used in sorted(uses[module]):
            if circle := follow(used):
                return circle
        done.add(way.pop())
        return []

    return next((circle for module in sorted(uses) if (circle := follow(module))), [])


def main() -> int:
    problems = []
    modules: dict[str, ast.Module] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = modules[dotted] = ast.parse(path.read_text("utf-8"))
        name = parts[1]
        if name not in LEVEL:
            problems.append(f"{path.relative_to(SOURCE)}: {name} has no layer; give it one in {Path(__file__).name}")
            continue
        for used in sorted({layer_of(one) for one in imported(tree)}):
            if LEVEL[used] < LEVEL[name]:
                problems.append(f"{path.relative_to(SOURCE)} imports {used}, which is above it")
    uses = {
        name: {module_of(one, modules) for one in imported(executed(tree))} - {name, "postbus", ""}
        for name, tree in modules.items()
    }
    if circle := circle_in(uses):
        problems.append(f"imports go in a circle: {' → '.join(circle)}")
    print("\n".join(problems) or "import layers: ok")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
