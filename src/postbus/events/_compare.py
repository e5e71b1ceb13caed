"""Finding changes of a registry that break readers of earlier events, or readers with the earlier registry.

A version is a contract: a change within a version must be readable both ways. A new version needs upcasters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from postbus.errors import InvalidInput

_AT_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_AT_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EXACTLY = ("pattern", "format", "multipleOf", "contentEncoding", "uniqueItems")


def breaking_changes(earlier: Any, later: Any) -> list[str]:
    """Compare two exported documents; return the breaking changes, none if all is well."""
    before, after = _events(earlier), _events(later)
    return [f"{name}: {change}" for name in before for change in _of_event(name, before, after, earlier, later)]


def _events(document: Any) -> Mapping[str, Any]:
    events = document.get("events") if isinstance(document, dict) else None
    wanted = {"topic", "aggregate", "version", "reads", "payload"}
    if not isinstance(events, dict) or not isinstance(document.get("$defs"), dict):
        raise _not_exported()
    if not all(isinstance(one, dict) and wanted <= one.keys() for one in events.values()):
        raise _not_exported()
    return events


def _not_exported() -> InvalidInput:
    return InvalidInput(
        "this is not a document of events", remedy="write one: postbus events export MODULE:REGISTRY > events.json"
    )


def _of_event(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], earlier: Any, later: Any
) -> Iterator[str]:
    if name not in after:
        yield "the event type is gone"
        return
    old, new = before[name], after[name]
    for what in ("topic", "aggregate"):
        if old[what] != new[what]:
            yield f"its {what} was {old[what]!r} and is {new[what]!r}"
    if old["version"] not in new["reads"]:
        yield f"version {old['version']} cannot be read any more, only {', '.join(map(str, new['reads']))}"
    if old["version"] == new["version"]:
        forwards, backwards = _Comparison(earlier, later), _Comparison(later, earlier)
        for why in forwards.refused(old["payload"], new["payload"]):
            yield f"what was emitted before cannot be read: {why}"
        for why in backwards.refused(new["payload"], old["payload"]):
            yield f"programs that know the earlier schema cannot read what is emitted now: {why}"


class _Comparison:
    """Finds values that one schema allows and another refuses. The schemas are parts of two documents."""

    def __init__(self, given: Any, wanted: Any) -> None:
        self._given = given["$defs"]
        self._wanted = wanted["$defs"]
        self._under_way: set[tuple[str, str]] = set()

    def refused(self, given: Any, wanted: Any, path: str = "payload") -> list[str]:
        """Say in words what `given` allows and `wanted` does not."""
        pair = str(given), str(wanted)
        if pair in self._under_way:  # the schema contains itself
            return []
        self._under_way.add(pair)
        try:
            return self._refused(given, wanted, path)
        finally:
            self._under_way.discard(pair)

    def _refused(self, given: Any, wanted: Any, path: str) -> list[str]:
        choices = list(_alternatives(wanted, self._wanted))
        found: list[str] = []
        for one in _alternatives(given, self._given):
            refusals = [self._differences(one, choice, path) for choice in choices]
            if not refusals:
                return [f"{path} may be nothing"]
            best = min(refusals, key=len)
            if best and len(choices) > 1:
                best = [f"{path} may be {_described(one)}"]
            found += best
        return found

    def _differences(self, given: Mapping[str, Any], wanted: Mapping[str, Any], path: str) -> list[str]:
        values, allowed = _values(given), _values(wanted)
        if allowed is not None:
            if values is None:
                return [f"{path} may be other than {_listed(allowed)}"]
            return [f"{path} may be {_listed([one])}" for one in values if one not in allowed]
        wanted_kind = wanted.get("type")
        for kind in [given.get("type")] if values is None else map(_kind_of, values):
            if wanted_kind is not None and kind != wanted_kind and (kind, wanted_kind) != ("integer", "number"):
                return [f"{path} may be {_described(given)}"]
        bounds = [*_AT_LEAST, *_AT_MOST, *_EXACTLY]
        found = [f"{path} may break {name} {wanted[name]!r}" for name in bounds if _may_break(given, wanted, name)]
        return found + self._of_object(given, wanted, path) + self._of_array(given, wanted, path)

    def _of_object(self, given: Mapping[str, Any], wanted: Mapping[str, Any], path: str) -> list[str]:
        has, wants = given.get("properties", {}), wanted.get("properties", {})
        missing = set(wanted.get("required", ())) - set(given.get("required", ()))
        found = [f"{path}.{name} may be missing" for name in sorted(missing)]
        for name in has.keys() & wants.keys():
            found += self.refused(has[name], wants[name], f"{path}.{name}")
        allowed = wanted.get("additionalProperties", True)
        for name in sorted(has.keys() - wants.keys()):
            if allowed is False:
                found.append(f"{path}.{name} may be there")
            elif isinstance(allowed, dict):
                found += self.refused(has[name], allowed, f"{path}.{name}")
        others = _others(given)
        if others is not None:
            for name in sorted(wants.keys() - has.keys()):
                found += self.refused(others, wants[name], f"{path}.{name}")
            if allowed is False:
                found.append(f"{path} may have any names")
            elif isinstance(allowed, dict):
                found += self.refused(others, allowed, f"{path}.*")
        return found

    def _of_array(self, given: Mapping[str, Any], wanted: Mapping[str, Any], path: str) -> list[str]:
        if given.get("type") != "array":
            return []
        found: list[str] = []
        named = max(len(given.get("prefixItems", ())), len(wanted.get("prefixItems", ())))
        for index in range(named + 1):  # the last index stands for all that follow
            one, other = _element(given, index), _element(wanted, index)
            if one is not False and other is not False:  # the bounds compare the numbers of elements
                found += self.refused(one, other, f"{path}[{index if index < named else ''}]")
        return found


def _element(node: Mapping[str, Any], index: int) -> Any:
    """The schema of an array's element, or False if there is none."""
    named = node.get("prefixItems", ())
    return named[index] if index < len(named) else node.get("items", {})


def _alternatives(node: Any, definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The alternatives that a schema allows, each as a schema without choices."""
    while isinstance(node, dict) and "$ref" in node:
        node = definitions.get(str(node["$ref"]).rpartition("/")[2], {})
    if not isinstance(node, dict):
        return
    for choice in ("anyOf", "oneOf"):
        if choice in node:
            for one in node[choice]:
                yield from _alternatives(one, definitions)
            return
    kinds = node.get("type")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        yield {**node, "type": kind}


def _values(node: Mapping[str, Any]) -> list[Any] | None:
    """The list of allowed values, or None if there is none."""
    if "const" in node:
        return [node["const"]]
    return list(node["enum"]) if "enum" in node else None


def _others(given: Mapping[str, Any]) -> Any:
    """The schema of an object's further properties. None: there are none, the default if it names any properties."""
    if given.get("type") != "object":
        return None
    others = given.get("additionalProperties", "properties" not in given)
    if isinstance(others, bool):
        return {} if others else None
    return others


def _may_break(given: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> bool:
    """Whether a value within the bounds of `given` may break a bound of `wanted`."""
    bound, kept = wanted.get(name), given.get(name)
    if bound is None or bound == kept:
        return False
    if kept is None or name in _EXACTLY:
        return True
    return bool(kept < bound if name in _AT_LEAST else kept > bound)


def _kind_of(value: Any) -> str:
    """The type of a value in the words of JSON Schema."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _described(node: Mapping[str, Any]) -> str:
    values = _values(node)
    return _listed(values) if values is not None else str(node.get("type") or "anything")


def _listed(values: list[Any]) -> str:
    return ", ".join(map(repr, values))
