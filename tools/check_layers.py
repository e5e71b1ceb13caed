"""Imports go downwards only: each module may import from the layers below its own."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "postbus"

# From the top to the bottom. A name without a dot stands for the module or for the whole package.
LAYERS = [
    ["cli"],
    ["demo"],
    ["server"],
    ["__init__"],
    ["_follow", "bus", "http_client"],
    ["relay"],
    ["worker", "admin", "inbox", "pull"],
    ["_puller", "_publisher"],
    ["_holder"],
    ["importing", "_group_admin", "_http_admin"],
    ["_scope_admin"],
    ["_lanes", "_scopes"],
    ["_claim", "_upkeep", "_consume"],
    ["_deliver"],
    ["_again"],
    ["_group_transaction"],
    ["_group_handle"],
    ["_aside", "_members", "_work"],
    ["_dispatch", "_reader", "_strand", "_line", "_sql_door"],
    ["_settlements"],
    ["_held"],
    ["_settle", "_send", "_wake", "_handle", "_waiting", "_heartbeat"],
    ["_store", "_old_outbox"],
    ["_page_store"],
    ["_queue_store", "_upkeep_store", "_admin_store", "_audit_store", "_scope_store", "_http_store"],
    ["_log_store", "_settle_sql"],
    ["_database", "_old_table", "group"],
    ["_migrate", "subscription", "embedded", "_drivers"],
    ["_throttle", "_alone", "scope", "events", "_binaries", "_owners", "_roles"],
    ["publish", "_keeper", "_segment", "catch_up", "sweeping", "health"],
    ["_pool"],
    ["_codec", "_commit", "_loop", "_watch", "_connect", "_floor", "retry", "middleware", "start"],
    ["options"],
    ["_translate"],
    ["_log", "_event_loop", "_actor", "message"],
    ["errors", "_version", "_identity", "_content_type", "_address", "_pin"],
    ["_visible"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imported(tree: ast.AST) -> set[str]:
    """The modules of postbus that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "postbus":
            found |= {alias.name if alias.name in LEVEL else "__init__" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("postbus."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("postbus.")}
    return found


def main() -> int:
    problems = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if name not in LEVEL:
            problems.append(f"{path.name}: {name} has no layer; give it one in {Path(__file__).name}")
            continue
        for used in imported(ast.parse(path.read_text("utf-8"))):
            if used != name and LEVEL.get(used, -1) <= LEVEL[name]:
                problems.append(f"{path.relative_to(SOURCE)} imports {used}, which is not below it")
    print("\n".join(problems) or "import layers: ok")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
