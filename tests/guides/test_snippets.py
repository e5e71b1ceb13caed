"""Snippets in the README and the guides compile, and name only what exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import postbus
from guides.pages import PAGES, Block, blocks
from postbus import events, http_client, inbox

SNIPPETS = blocks("python")
TYPES: dict[str, Any] = {
    "bus": postbus.Bus,
    "bus.admin": postbus.Admin,
    "delivery": postbus.Delivery,
    "group": postbus.Group,
    "inbox": inbox.Inbox,
    "message": postbus.Message,
    "popped": postbus.Popped,
    "registry": events.Registry,
}
"""The values of the variables that pages use."""


def _tree(snippet: Block) -> ast.Module:
    """Its syntax tree; `await` and `async with` may stand outside of functions."""
    compile(snippet.text, str(snippet), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return ast.parse(snippet.text)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=str)
def test_python_compiles(snippet: Block) -> None:
    """With `...` for what is left out."""
    _tree(snippet)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=str)
def test_imports_exist(snippet: Block) -> None:
    """Names that a page imports from Postbus are there."""
    for node in ast.walk(_tree(snippet)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "postbus":
            module = importlib.import_module(str(node.module))
            assert [one.name for one in node.names if not hasattr(module, one.name)] == []


@pytest.mark.parametrize("snippet", SNIPPETS, ids=str)
def test_calls_fit_the_api(snippet: Block) -> None:
    """Methods that are called exist, and take the arguments that are given."""
    tree = _tree(snippet)
    types = {**TYPES, **_assigned(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (found := _called(ast.unparse(node.func), types)) is not None:
            problem = _misfit(found, node)
            assert problem is None, f"{snippet}: {ast.unparse(node)}: {problem}"


@pytest.mark.parametrize("snippet", SNIPPETS, ids=str)
def test_attributes_exist(snippet: Block) -> None:
    """Attributes of messages, deliveries and the like that a page reads are there."""
    tree = _tree(snippet)
    types = {**TYPES, **_assigned(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (owner := types.get(ast.unparse(node.value))) is not None:
            assert node.attr in _attributes_of(owner), f"{snippet}: {ast.unparse(node)}"


def _attributes_of(owner: Any) -> set[str]:
    """The methods, properties and fields of a class, also those that its constructor sets."""
    body = ast.walk(ast.parse(inspect.getsource(inspect.getmodule(owner) or owner)))
    set_by_itself = {one.attr for one in body if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"}
    return {*dir(owner), *inspect.get_annotations(owner), *set_by_itself}


def _assigned(tree: ast.Module) -> dict[str, type]:
    """The variables of a snippet to which it assigns a new object of Postbus."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = _called(ast.unparse(node.value.func), {})
            if isinstance(made, type):
                found[ast.unparse(node.targets[0])] = made
    return found


def _called(name: str, types: dict[str, Any]) -> Any:
    """The function or class of Postbus that is meant by a dotted name; None for others."""
    owner, _, attribute = name.rpartition(".")
    if owner in types:
        found = inspect.getattr_static(types[owner], attribute, None)
        assert found is not None, f"{types[owner].__name__} has no {attribute}"
        return found
    for module in (postbus, events, inbox, http_client):
        if not owner and name in module.__all__:
            return getattr(module, name)
        if owner in module.__all__:
            return getattr(getattr(module, owner), attribute)
    return None


def _misfit(function: Any, call: ast.Call) -> str | None:
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return None  # not known before it runs
    if isinstance(function, classmethod | staticmethod):
        function = function.__func__
    signature = inspect.signature(function)
    given = [None] * (len(call.args) + ("self" in signature.parameters or "cls" in signature.parameters))
    try:
        bound = signature.bind(*given, **{str(one.arg): None for one in call.keywords})
    except TypeError as error:
        return str(error)
    extra = bound.arguments.get("options", {}) if "options" in signature.parameters else {}
    known = set(_options_of(function)) if extra else set()
    return f"unknown options {sorted(set(extra) - known)}" if set(extra) - known else None


def _options_of(function: Any) -> Iterator[str]:
    """The names in the TypedDict that its `**options` are annotated with."""
    name = re.fullmatch(r"Unpack\[(\w+)\]", function.__annotations__["options"])
    assert name is not None
    yield from typing.get_type_hints(function.__globals__[name[1]])


def test_misfits_are_found() -> None:
    """Unknown methods, options and arguments do not pass."""

    def problem(text: str) -> str | None:
        node = ast.parse(text, mode="eval").body
        assert isinstance(node, ast.Call)
        return _misfit(_called(ast.unparse(node.func), TYPES), node)

    assert problem("bus.publish(conn, 'orders', {}, key='k')") is None
    assert problem("bus.publish(conn, 'orders', {}, keys='k')") == "unknown options ['keys']"
    assert "missing" in str(problem("bus.publish(conn, 'orders')"))
    assert "unexpected" in str(problem("RetryPolicy(attempts=3)"))
    with pytest.raises(AssertionError, match="Bus has no emitt"):
        problem("bus.emitt(conn)")


async def test_functions_and_views_of_sql_exist(conn: Any) -> None:
    """Each `postbus.function(…)` of a page is a function with those arguments, and each view can be selected from."""
    functions = {
        row["name"]: set(row["arguments"])
        for row in await conn.fetch(
            "select p.proname as name, array_agg(distinct argument) as arguments from pg_proc p, "
            "unnest(coalesce(p.proargnames, '{}') || '{\"\"}'::text[]) as argument "
            "where p.pronamespace in ('postbus'::regnamespace, 'postbus_topics'::regnamespace) group by p.proname"
        )
    }
    for page in PAGES:
        text = page.read_text("utf-8")
        for name, arguments in re.findall(r"\bpostbus(?:_topics)?\.(\w+)\(((?:[^()]|\([^()]*\))*)\)", text):
            assert name in functions, f"{page.name}: {name}"
            assert set(re.findall(r"(\w+) =>", arguments)) <= functions[name], f"{page.name}: {name}"
        for name in re.findall(r"\bselect\b[^`;]*?\bfrom (postbus\w*\.\w+)(?![\w(])", text):
            assert await conn.fetchval("select to_regclass($1)", name) is not None, f"{page.name}: {name}"
