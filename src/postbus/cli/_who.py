"""The person who types commands, for the audit log."""

from __future__ import annotations

import os
import pwd
import socket

from postbus._db.actor import shown_actor


def os_actor() -> str:
    """The account of this process, and the login if that is another one, as with sudo."""
    account = _account()
    login = _login() or account
    text = f"os:{account}@{socket.gethostname()}"
    return shown_actor(text if login == account else f"{text} login {login}")


def _account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the account of a container may have no name
        return str(os.getuid())


def _login() -> str | None:
    try:
        return os.getlogin()
    except OSError:  # no terminal
        return None
