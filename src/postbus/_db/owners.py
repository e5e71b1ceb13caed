"""Looks who owns the schema before anything of it is called.

Whoever may create schemas in a database may have made a schema `postbus` beforehand, with functions of his own in it,
which would run with the rights of whoever calls them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from postbus.errors import SchemaNotTrusted

_MESSAGE = "%s belongs to %s, whose rights %s does not have: nothing of the schema was called"
_REMEDY = (
    "if %s is to own Postbus, connect as that role, or trust it: grant %s to %s; "
    "if not, look at what was made, and remove it: %s"
)


async def check_owners(conn: Any, *, is_client: bool) -> None:
    """Refuse a schema that is a stranger's, or that has something of a stranger in it. In a transaction that is pinned.

    is_client: who calls the schema, but does not change it, trusts its owner, unless it has more to lose than others:
        superusers and the database's owner do not.
    """
    found = await conn.fetchrow(_strangers(is_client))
    if found is not None:
        owner, user = found["owner"], found["user"]
        raise SchemaNotTrusted(
            _MESSAGE % (found["what"], owner, user), remedy=_REMEDY % (owner, owner, user, found["removal"])
        )


def owners_script() -> str:
    """The same for a migration, as a statement for scripts."""
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
