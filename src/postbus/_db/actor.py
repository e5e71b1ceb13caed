"""Who acts through a shared login: what the audit log shows beside the database user."""

from __future__ import annotations

from postbus.errors import InvalidOption

_LONGEST = 200

# Of the transaction, so that a connection which is used for somebody else next, or a pooler's, does not keep it.
SAY_ACTOR = "select pg_catalog.set_config('postbus.actor', $1, true)"


def checked_actor(actor: str) -> str:
    """What a program says of who acts. Refuses what would not show as it is."""
    if not isinstance(actor, str) or not 1 <= len(actor) <= _LONGEST or not actor.isprintable():
        raise InvalidOption(
            f"actor {actor!r:.220} is not a name", remedy=f"give 1 to {_LONGEST} printable characters, such as a login"
        )
    return actor


def shown_actor(text: str) -> str:
    """The same for what strangers have chosen, such as the subject of a JWT: ? stands for what cannot be shown."""
    return "".join(one if one.isprintable() else "?" for one in text[:_LONGEST])
