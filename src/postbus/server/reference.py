"""The reference page: an OpenAPI document as HTML, without scripts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from html import escape
from http import HTTPStatus
from typing import Any

from postbus.server.description import ROLES

Json = dict[str, Any]
_WORDS = {"string": "text", "boolean": "true or false", "null": "null", "object": "object"}
_LIMITS = (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"), ("minItems", "at least"))
_SUBTITLES = {
    "messages": "Push messages, and look at them.",
    "consuming": "Take messages, and settle them.",
    "topics": "Create, change, pause and delete topics.",
    "groups": "Subscribe groups, and look after them.",
    "dead letters": "Messages that were given up.",
    "webhooks": "Let the server send messages to an address.",
    "health": "Liveness, readiness, and problems that need attention.",
    "tokens": "Who may call the server.",
    "audit": "Who did what.",
}


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *parts: str | Html | None, **attributes: str | None) -> Html:
    """An element. Text that is not HTML yet is escaped."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items() if value
    )
    return Html(f"<{name}{given}>{join(parts)}</{name}>")


def join(parts: Iterable[str | Html | None], between: str = "") -> Html:
    """Parts one after the other, escaped where they are not HTML yet."""
    texts = (part if isinstance(part, Html) else escape(part) for part in parts if part is not None)
    return Html(between.join(texts))


def render(document: Json) -> str:
    """The whole page."""
    title = f"{document['info']['title']} {document['info']['version']}"
    head = tag(
        "head",
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark"><link rel="stylesheet" href="/docs/style.css">'),
        tag("title", f"{title}: HTTP reference"),
    )
    page = _Page(document)
    return "<!doctype html>\n" + tag("html", head, tag("body", page.contents(), page.main()), lang="en")


class _Page:
    """The parts of the page."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self._schemas: Json = document["components"]["schemas"]
        self._by_tag: dict[str, list[tuple[str, str, Json]]] = {}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                self._by_tag.setdefault((operation.get("tags") or ["other"])[0], []).append((path, method, operation))
        guarded = [one["responses"] for part in self._by_tag.values() for _, _, one in part if one.get(ROLES)]
        self._usual: dict[str, str] = {
            status: answer.get("description", "")
            for status, answer in (guarded[0] if guarded else {}).items()
            if not status.startswith("2") and all(status in one for one in guarded)
        }
        order = list(_SUBTITLES)
        self._tags = sorted(self._by_tag, key=lambda one: (order.index(one) if one in order else len(order), one))

    # the parts

    def contents(self) -> Html:
        """The table of contents."""
        sections = [
            tag(
                "li",
                tag("a", name.capitalize(), href=f"#{_anchor(name)}"),
                tag("ul", join(self._link_to(*one) for one in self._by_tag[name])),
            )
            for name in self._tags
        ]
        shapes = tag("li", tag("a", "Shapes", href="#shapes"))
        brand = tag("a", "Postbus", href="#top", class_="brand")
        return tag("nav", brand, tag("ul", join(sections), shapes), aria_label="Contents")

    def main(self) -> Html:
        """The main part of the page: routes, errors and shapes."""
        info = self._document["info"]
        intro = tag(
            "header",
            tag("h1", info["title"], " ", tag("small", info["version"])),
            tag("p", info.get("description", ""), class_="lead"),
            tag(
                "p",
                "With authentication, each request under ",
                tag("code", "/v1"),
                " needs the header ",
                tag("code", "Authorization: Bearer TOKEN"),
                ". Errors are problem details of RFC 9457 with a ",
                tag("code", "code"),
                " and a ",
                tag("code", "remedy"),
                ". For programs: ",
                tag("a", "/openapi.json", href="/openapi.json"),
                ".",
            ),
        )
        return tag("main", intro, self._errors(), join(map(self._section, self._tags)), self._shapes(), id="top")

    def _link_to(self, path: str, method: str, operation: Json) -> Html:
        verb = tag("span", _verb(method), class_=f"verb {method}")
        return tag("li", tag("a", verb, tag("span", operation["summary"]), href=f"#{operation['operationId']}"))

    def _section(self, name: str) -> Html:
        title = tag("h2", tag("a", name.capitalize(), href=f"#{_anchor(name)}"))
        subtitle = tag("p", _SUBTITLES[name], class_="lead") if name in _SUBTITLES else None
        return tag(
            "section", title, subtitle, join(self._operation(*one) for one in self._by_tag[name]), id=_anchor(name)
        )

    def _operation(self, path: str, method: str, operation: Json) -> Html:
        roles = operation.get(ROLES) or ()
        needed = (
            tag("p", "Role: ", join((tag("code", one) for one in roles), " or "), class_="role")
            if roles
            else tag("p", "For everybody.", class_="role")
        )
        title = tag(
            "h3",
            tag("span", method.upper(), class_=f"verb {method}"),
            tag("a", _path(path), href=f"#{operation['operationId']}"),
        )
        text = [tag("p", one) for one in operation.get("description", "").split("\n\n") if one]
        return tag(
            "article", title, join(text), needed, self._parameters(operation), self._body(operation),
            _curl(path, method, self._example(operation), is_stream=_is_stream(operation)),
            self._answers(operation), id=operation["operationId"],
        )  # fmt: skip

    def _parameters(self, operation: Json) -> Html | None:
        rows = [
            self._row(
                one["name"],
                one.get("schema", {}),
                one.get("description"),
                note=one["in"],
                is_required=one.get("required", False),
            )
            for one in operation.get("parameters", ())
        ]
        return _table("Parameters", rows)

    def _body(self, operation: Json) -> Html | None:
        schema = _content(operation.get("requestBody"))
        if schema is None:
            return None
        first = next(iter(schema.get("oneOf") or schema.get("anyOf") or [schema]))
        return join((tag("h4", "Body"), tag("p", self._type(schema)), self._fields(first)))

    def _answers(self, operation: Json) -> Html:
        entries = []
        for status, answer in sorted(operation["responses"].items()):
            schema = _content(answer)
            is_good = status.startswith("2")
            if status in self._usual and operation.get(ROLES):
                continue
            if is_good and schema == {} and "application/json" not in answer["content"]:
                what: str | Html = tag("code", ", ".join(answer["content"]))
            elif is_good and schema is not None:
                what = self._type(schema)
            else:
                what = answer.get("description") or HTTPStatus(int(status)).phrase
            entries.append(self._answer(status, what))
        if operation.get(ROLES):
            entries.append(tag("li", tag("a", "and errors of all routes", href="#errors"), class_="usual"))
        return join((tag("h4", "Answers"), tag("ul", join(entries), class_="answers")))

    def _answer(self, status: str, what: str | Html) -> Html:
        good_or_bad = "good" if status.startswith("2") else "bad"
        return tag("li", tag("code", status, class_=good_or_bad), tag("span", what))

    def _errors(self) -> Html:
        """The answers that every route may give."""
        usual = [self._answer(status, text) for status, text in sorted(self._usual.items())]
        return tag("article", tag("h3", "Errors of all routes"), tag("ul", join(usual), class_="answers"), id="errors")

    def _shapes(self) -> Html:
        parts = []
        for name, schema in sorted(self._schemas.items()):
            text = schema.get("description")
            fields = self._fields(schema) or tag("p", self._type(schema))
            parts.append(tag("article", tag("h3", name), tag("p", text) if text else None, fields, id=f"shape-{name}"))
        lead = tag("p", "The parts of bodies and answers.", class_="lead")
        return tag("section", tag("h2", tag("a", "Shapes", href="#shapes")), lead, join(parts), id="shapes")

    # schemas

    def _fields(self, schema: Json) -> Html | None:
        """The fields of an object as a table, or None for anything else."""
        known = self._resolved(schema)
        required = known.get("required", ())
        rows = [
            self._row(name, one, self._resolved(one).get("description"), is_required=name in required)
            for name, one in known.get("properties", {}).items()
        ]
        return _table(None, rows)

    def _row(self, name: str, schema: Json, text: str | None, *, is_required: bool, note: str = "") -> Html:
        default = schema.get("default")
        marks = [
            tag("span", "required", class_="mark") if is_required else None,
            tag("span", note, class_="mark") if note else None,
        ]
        kind = [self._type(schema)]
        if default not in (None, "", [], {}):
            kind.append(join((", default ", tag("code", json.dumps(default)))))
        return tag(
            "tr",
            tag("th", tag("code", name), Html(" "), join(marks, " "), scope="row"),
            tag("td", join(kind), tag("p", text) if text else None),
        )

    def _resolved(self, schema: Json) -> Json:
        name = schema.get("$ref", "").rpartition("/")[2]
        found: Json = self._schemas[name] if name else schema
        return found

    def _type(self, schema: Json) -> Html:
        """Say in words what a schema requires."""
        kind = schema.get("type")
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return tag("a", name, href=f"#shape-{name}")
        if choices := schema.get("oneOf") or schema.get("anyOf"):
            return join((self._type(one) for one in choices), " or ")
        if "enum" in schema or "const" in schema:
            return join((tag("code", _as_json(one)) for one in schema.get("enum", [schema.get("const")])), " or ")
        if isinstance(kind, list):
            return join((self._type({**schema, "type": one}) for one in kind), " or ")
        return self._plain_type(kind, schema)

    def _plain_type(self, kind: str | None, schema: Json) -> Html:
        if kind == "array":
            return join(("list of ", self._type(schema.get("items", {}))))
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return join(("object of ", self._type(schema["additionalProperties"]), " by name"))
        if kind is None:
            return Html("any JSON")
        word = "time" if schema.get("format") == "date-time" else _WORDS.get(kind, kind)
        limits = [f" {text} {schema[name]:g}" for name, text in _LIMITS if name in schema and kind != "null"]
        return join((word, ",".join(limits) if limits else None))

    def _example(self, operation: Json) -> Any:
        schema = _content(operation.get("requestBody"))
        if schema is None:
            return None
        choices = schema.get("oneOf") or schema.get("anyOf") or [schema]
        return next(
            (self._resolved(one)["examples"][0] for one in choices if self._resolved(one).get("examples")), None
        )


def _is_stream(operation: Json) -> bool:
    return any("text/event-stream" in answer.get("content", ()) for answer in operation["responses"].values())


def _content(answer: Json | None) -> Json | None:
    """The schema of a body or an answer."""
    media = next(iter((answer or {}).get("content", {}).values()), None)
    return None if media is None else media.get("schema")


def _table(title: str | None, rows: list[Html]) -> Html | None:
    if not rows:
        return None
    table = tag("table", tag("tbody", join(rows)))
    return join((tag("h4", title) if title else None, tag("div", table, class_="wide")))


def _as_json(value: Any) -> str:
    """A value as one writes it in JSON, but texts without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _curl(path: str, method: str, example: Any, *, is_stream: bool) -> Html:
    parts = ["curl", "-N"] if is_stream else ["curl"]
    if method != "get" and not (method == "post" and example is not None):
        parts += ["-X", method.upper()]
    if example is not None:
        parts += ["-d", shlex.quote(json.dumps(example))]
    shown = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), path)
    return tag("pre", tag("code", " ".join([*parts, f"localhost:8472{shown}"])), tabindex="0")


def _path(path: str) -> Html:
    """A path with its parameters marked, and line breaks allowed at slashes."""
    parts = re.split(r"(\{\w+\}|/)", path)
    return join(
        tag("var", one) if one.startswith("{") else Html("/<wbr>") if one == "/" and path != "/" else one
        for one in parts
    )


def _verb(method: str) -> str:
    return {"delete": "DEL"}.get(method, method.upper())


def _anchor(name: str) -> str:
    return f"tag-{name.replace(' ', '-')}"
