"""docs/security.md and SECURITY.md name existing pages, sections and tests, and everything that is attacked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.fix_attacks import attack_of, attacks, table_in

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
TESTS = ROOT / "tests" / "security"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_NAMED = re.compile(r"`((?:tests|tools|docs|src)/[\w./-]+|[\w/]+\.(?:py|md|sql|lock))`")
_ATTACKED = re.compile(r"""mark\.attack\(\s*(["'])(.+?)\1""")
_MAKE = re.compile(r"`make ([a-z-]+)")


def _anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.replace("`", "").lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", [PAGE, ROOT / "SECURITY.md"], ids=lambda page: str(page.name))
def test_links_lead_somewhere(page: Path) -> None:
    """Each linked file and section exists, and so does each file and make target in the text."""
    text = page.read_text("utf-8")
    for link in _LINK.findall(text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target.read_text("utf-8")), link
    for name in _NAMED.findall(text):
        found = [ROOT / name, page.parent / name, *ROOT.glob(f"tests/**/{name}"), *ROOT.glob(f"src/**/{name}")]
        assert any(path.exists() for path in found), name
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [name for name in _MAKE.findall(text) if f"\n{name}:" not in makefile] == []


def test_contents_name_every_section() -> None:
    """They are in the order of the sections."""
    text = PAGE.read_text("utf-8")
    listed = re.findall(r"^- \[(.+)\]\(#.+\)$", text, re.MULTILINE)
    assert listed == re.findall(r"^## (.+)$", text, re.MULTILINE)


def test_table_of_attacks_names_everything_that_is_attacked() -> None:
    """The rows are the targets of tests/security. If this fails: make attacks."""
    attacked = {on for path in TESTS.glob("test_*.py") for _, on in _ATTACKED.findall(path.read_text("utf-8"))}
    assert sorted(table_in(PAGE.read_text("utf-8"))) == sorted(attacked)


def test_table_of_attacks_promises_no_more_than_there_are(request: pytest.FixtureRequest) -> None:
    """This run has at least as many attacks on each target as the page says. If this fails: make attacks."""
    items = attacks(request.session.items)
    if {item.path for item in items} != set(TESTS.glob("test_*.py")) or any("::" in one for one in request.config.args):
        pytest.skip("a part of the tests is run")
    told = table_in(PAGE.read_text("utf-8"))
    names = [attack_of(item) for item in items]
    assert {on: count for on, count in told.items() if names.count(on) < count} == {}
