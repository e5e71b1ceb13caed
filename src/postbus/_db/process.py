"""This process, as the database knows it: its name, and the secret that proves it."""

from __future__ import annotations

import os
import secrets
import socket
import uuid


def process_name(name: str | None = None) -> str:
    """A name for this process in the database, with a random suffix.

    A process that is started again under the same name does not own the leases of the one before.
    """
    return f"{name or f'{socket.gethostname()}:{os.getpid()}'}:{secrets.token_hex(3)}"


SECRET = uuid.uuid4()
"""A secret of this process, which proves to the database that a call under the process's name is its own."""


def given_name(process_name: str) -> str:
    """The part of a process's name that its user chose."""
    return process_name.rpartition(":")[0] or process_name
