"""Roles and routes: the server's table equals that of docs/security.md, and the database's grants."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from http_api.test_auth import TABLE
from postbus.server.app import PARTS
from postbus.server.rights import RIGHTS, ROLES, held_by

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


class Row(NamedTuple):
    """A row of the page's table."""

    action: str
    routes: list[str]
    functions: list[str]
    roles: set[str]
    limited: str


def rows() -> list[Row]:
    section = PAGE.read_text("utf-8").partition("## Roles and what they may do")[2].partition("\n## ")[0]
    found = []
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| action"):
            action, http, sql, *marks, limited = [cell.strip() for cell in line.strip("|").split("|")]
            roles = {role for role, mark in zip(ROLES, marks, strict=True) if mark == "yes"}
            found.append(Row(action, re.findall("`(.+?)`", http), re.findall("`(.+?)`", sql), roles, limited))
    return found


def long(route: str) -> str:
    """Return a route of the page, in full."""
    route = re.sub(r"\bG\b", "T/groups/{group}", route)
    return re.sub(r" T\b", " /v1/topics/{topic}", route)


def routes() -> dict[str, str]:
    """Return all routes, each with the name of its operation."""
    return {
        f"{next(iter(one.http_methods))} {next(iter(one.paths)).replace(':str', '')}": str(one.operation_id)
        for part in PARTS
        for one in part.ROUTES
    }


def may(name: str) -> set[str]:
    """Return the roles that open a route; all of them if it needs no authentication."""
    right = RIGHTS[name]
    return {
        role
        for role in ROLES
        if not right.roles or not held_by(frozenset({role}), sees_payloads=True).isdisjoint(right.roles)
    }


def test_page_has_every_route_with_its_roles() -> None:
    """Each route is listed once, with the roles that the server requires."""
    of_page = {long(route): row for row in rows() for route in row.routes if "?" not in route}
    told = {routes()[route]: row.roles for route, row in of_page.items()}

    assert sum(len(row.routes) for row in rows()) == len(of_page) + 1  # one has a row of its own for an option
    assert told == {name: may(name) for name in RIGHTS}
    assert sorted(RIGHTS) == sorted(routes().values())


def test_page_says_which_routes_need_all_groups() -> None:
    """Where it says no, the server requires all groups."""
    closed = {routes()[long(route)] for row in rows() if row.limited == "no" for route in row.routes}
    assert closed == {name for name, right in RIGHTS.items() if right.all_groups}


def test_table_of_the_tests_equals_the_servers() -> None:
    """Both were written by hand, to check each other."""
    for name, (_, _, body, allowed) in TABLE.items():
        if name == "transaction":
            assert body["push"]
        else:
            assert allowed == (may(name) if RIGHTS[name].roles else set()), name


async def test_database_grants_what_the_page_says(conn: Any, roles: Callable[[str], str]) -> None:
    """Each function is granted to the roles of its row, and to no other role of ours."""
    granted = await conn.fetch(
        "select f.proname as name, array_agg(distinct r.role) as roles "
        "from pg_proc f, unnest($1::text[], $2::text[]) as r (role, name) "
        "where f.pronamespace = 'postbus'::regnamespace and has_function_privilege(r.name, f.oid, 'execute') "
        "group by f.proname",
        list(ROLES),
        [roles(role) for role in ROLES],
    )
    found = {one["name"]: set(one["roles"]) for one in granted}
    told = {function: row.roles for row in rows() for function in row.functions}
    assert {function: found.get(function) for function in told} == told


def test_admin_includes_operator_and_operator_includes_observer() -> None:
    """Without payloads nobody is a consumer or an admin."""
    assert held_by(frozenset({"admin"}), sees_payloads=True) == {"admin", "operator", "observer"}
    assert held_by(frozenset({"operator"}), sees_payloads=False) == {"operator", "observer"}
    assert held_by(frozenset({"admin", "consumer", "producer"}), sees_payloads=False) == {"producer"}
