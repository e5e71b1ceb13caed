"""Asks OSV, or else a named package index, whether a dependency in requirements.lock has a known vulnerability.

Ends with 0 if none is known, with 1 if one is, and with 3 if nobody could be asked: then nothing is known.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

LOCK = Path(__file__).parent.parent / "requirements.lock"
OSV = "https://api.osv.dev"
NONE_KNOWN, VULNERABLE, NOT_ASKED = 0, 1, 3

_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
_TIMEOUT = 20.0  # seconds
_AT_ONCE = 8


class Package(NamedTuple):
    """A dependency, as it is pinned."""

    name: str
    version: str


class NotReached(Exception):
    """A database that does not answer; the text says why."""


Found = dict[Package, list[str]]
"""The names of the vulnerabilities that a package has."""


def pinned(lock: str) -> list[Package]:
    """The packages and versions that a lock file pins."""
    return [Package(*found) for found in _PINNED.findall(lock)]


def ask_osv(url: str, packages: Sequence[Package]) -> Found:
    """All in one question. A page of answers is enough to know that a package has any."""
    questions = [{"package": {"name": one.name, "ecosystem": "PyPI"}, "version": one.version} for one in packages]
    answers = _ask(f"{url}/v1/querybatch", {"queries": questions})["results"]
    if len(answers) != len(packages):
        raise NotReached(f"{url} answers {len(answers)} of {len(packages)} questions")
    return {
        one: [vulnerability["id"] for vulnerability in answer["vulns"]]
        for one, answer in zip(packages, answers, strict=True)
        if answer.get("vulns")
    }


def ask_index(url: str, packages: Sequence[Package]) -> Found:
    """The answer of the index for each release."""

    def of(package: Package) -> list[str]:
        release = _ask(f"{url}/pypi/{package.name}/{package.version}/json")
        if "vulnerabilities" not in release:
            raise NotReached(f"{url} does not tell vulnerabilities")
        return [one["id"] for one in release["vulnerabilities"] if not one.get("withdrawn")]

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        told = list(threads.map(of, packages))
    return {package: names for package, names in zip(packages, told, strict=True) if names}


def _ask(url: str, question: Any = None) -> Any:
    body = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json", "accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise NotReached(f"{url}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=Path, default=LOCK)
    parser.add_argument("--osv", default=OSV, help="another address of OSV")
    parser.add_argument("--index", help="a package index that has PyPI's JSON, to be asked if OSV cannot be reached")
    given = parser.parse_args(arguments)
    packages = pinned(given.lock.read_text("utf-8"))
    if not packages:
        print(f"NOT CHECKED: {given.lock} pins nothing", file=sys.stderr)
        return NOT_ASKED

    ways: list[tuple[Callable[[str, Sequence[Package]], Found], str]] = [(ask_osv, given.osv)]
    if given.index:
        ways.append((ask_index, given.index))
    for ask, url in ways:
        try:
            found = ask(url, packages)
        except NotReached as error:
            print(f"not reached: {error}", file=sys.stderr)
            continue
        for package, names in found.items():
            print(f"{package.name} {package.version}: {', '.join(names)}")
        print(f"{url} knows of vulnerabilities in {len(found)} of {len(packages)} dependencies")
        return VULNERABLE if found else NONE_KNOWN
    print(
        f"NOT CHECKED: no database of vulnerabilities can be reached, so nothing is known about these {len(packages)} "
        "dependencies. Run it where there is a network, or name a package index: --index URL",
        file=sys.stderr,
    )
    return NOT_ASKED


if __name__ == "__main__":
    sys.exit(main())
