"""The actor that the audit log shows beside the database user, for logins that several people share."""

from __future__ import annotations

from postbus.errors import InvalidOption

_LONGEST = 200

# Set for the transaction only: the connection, or that of a pooler, may serve another actor next.
SET_ACTOR = "select pg_catalog.set_config('postbus.actor', $1, true)"


def checked_actor(actor: str) -> str:
    """An actor that a program names. Refuses a name that could not be shown as it is."""
    if not isinstance(actor, str) or not 1 <= len(actor) <= _LONGEST or not actor.isprintable():
        raise InvalidOption(
            f"actor {actor!r:.220} is not a name", remedy=f"give 1 to {_LONGEST} printable characters, such as a login"
        )
    return actor


def shown_actor(text: str) -> str:
    """An actor's name that a stranger chose, such as the subject of a JWT, with ? for what cannot be shown."""
    return "".join(one if one.isprintable() else "?" for one in text[:_LONGEST])
