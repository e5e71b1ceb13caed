"""ARCHITECTURE.md and docs/design: the files and names in them exist, and the pages keep their shape."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SQL = ROOT / "src" / "postbus" / "sql" / "code"
OVERVIEW = ROOT / "ARCHITECTURE.md"
PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))
DESIGNS = [page for page in PAGES if page.name not in ("README.md", "glossary.md")]
ALL = [OVERVIEW, *PAGES]

HEADINGS = ["Invariant", "Mechanism", "What was tried and rejected", "Files", "Tests"]
_PATH = re.compile(r"`((?:src|tests|docs|bench|faults|tools|sql)/[\w./-]*|[\w/-]+\.(?:py|sql|md))`")
_FUNCTION = re.compile(r"`(?:postbus\.)?([a-z]\w*)\(\)`")
_NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)?)`")


def _id(page: Path) -> str:
    return page.name


def _file(path: str) -> Path:
    return ROOT / "src" / "postbus" / path if path.startswith("sql/") else ROOT / path


def _words() -> set[str]:
    files = [one for top in ("src", "bench") for end in ("py", "sql") for one in (ROOT / top).rglob(f"*.{end}")]
    return {word for one in files for word in re.findall(r"\w+", one.read_text("utf-8"))}


@pytest.mark.parametrize("page", ALL, ids=_id)
def test_named_files_exist(page: Path) -> None:
    """Each path in backticks is that of a file or folder of the repository."""
    named = _PATH.findall(page.read_text("utf-8"))

    assert [path for path in named if not _file(path).exists()] == []


@pytest.mark.parametrize("page", ALL, ids=_id)
def test_named_sql_functions_exist(page: Path) -> None:
    """Each `name()` is a function of the database, in a file of that name."""
    named = _FUNCTION.findall(page.read_text("utf-8"))

    assert [name for name in named if not list(SQL.rglob(f"{name}.sql"))] == []


@pytest.mark.parametrize("page", [OVERVIEW, *DESIGNS], ids=_id)
def test_named_identifiers_occur_in_the_source(page: Path) -> None:
    """Each name in backticks, of a class, method, table or column, is one that the source uses."""
    words = _words()
    named = _NAME.findall(page.read_text("utf-8"))

    assert [name for name in named if not set(name.split(".")) <= words | {"py", "sql", "md"}] == []


@pytest.mark.parametrize("page", DESIGNS, ids=_id)
def test_design_pages_have_one_shape(page: Path) -> None:
    """Each design page has the same five parts in the same order, and is in the index."""
    headings = re.findall(r"^## (.+)$", page.read_text("utf-8"), re.MULTILINE)

    assert headings == HEADINGS
    assert f"]({page.name})" in (page.parent / "README.md").read_text("utf-8")


def test_overview_is_short_and_each_walk_names_at_most_five_files() -> None:
    """ARCHITECTURE.md has at most 150 lines and six walks, each through at most five files."""
    text = OVERVIEW.read_text("utf-8")
    walks = [one for one in text.partition("## Six walks\n")[2].partition("\n## ")[0].split("\n\n") if one.strip()]

    assert len(text.splitlines()) <= 150
    assert len(walks) == 6
    assert [walk for walk in walks if not 1 <= len(set(_PATH.findall(walk))) <= 5] == []
