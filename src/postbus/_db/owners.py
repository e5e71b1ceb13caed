"""Checking the owners of the schema and its objects before anything in it is called.

Any user who may create schemas may have made a schema `postbus` beforehand. Functions in it would run with the rights
of their callers.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from postbus.errors import SchemaNotTrusted

_MESSAGE = "%s belongs to %s, whose rights %s does not have: nothing in the schema was called"
_REMEDY = (
    "if %s is to own Postbus, connect as that role, or trust it: grant %s to %s; if not, inspect it and remove it: %s"
)


async def check_owners(conn: Any, *, is_client: bool) -> None:
    """Refuse a schema that belongs to a stranger, or has objects of a stranger. Needs a pinned search path.

    is_client: a client calls the schema and does not change it, and so trusts the schema's owner. Superusers and the
        database's owner do not: their rights are worth stealing.
    """
    found = await conn.fetchrow(_strangers(is_client))
    if found is not None:
        owner, user = found["owner"], found["user"]
        raise SchemaNotTrusted(
            _MESSAGE % (found["what"], owner, user), remedy=_REMEDY % (owner, owner, user, found["removal"])
        )


def owners_script() -> str:
    """The same check for a migration, as a statement for scripts."""
    return f"""do $postbus$
declare
    _found record;
begin
    for _found in
{_strangers(False).rstrip()}
    loop
        raise exception using errcode = '{SchemaNotTrusted.code}',
            message = format('{_MESSAGE}', _found.what, _found.owner, _found."user"),
            hint = format('{_REMEDY}', _found.owner, _found.owner, _found."user", _found.removal);
    end loop;
end $postbus$;"""


@cache
def _strangers(is_client: bool) -> str:
    text = (files("postbus") / "sql" / "foreign.sql").read_text("utf-8")
    return text.replace("{is_client}", str(is_client).lower())
