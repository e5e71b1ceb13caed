"""The process that owns an embedded PostgreSQL server and ends it with its last user.

`server.py` runs it, by COMMAND, with a plan on stdin. These modules import the standard library and each other, and
nothing else: a supervisor starts in milliseconds and stays small, whatever the rest of the package imports.

Every lock is an flock on a file in the home folder, so the kernel releases it when its holder dies:

    start    a starter, from looking at the folder until the server answers
    users    shared by every user while it uses the server; exclusive by the supervisor once nobody is
             left, until the supervisor has ended
    supervisor   the supervisor, for its life
    server   the supervisor and, by inheritance, every process of PostgreSQL: when it is free, none of them
             is alive, whatever a pid file says
    closing  a leaving user, while it looks whether others remain

They are taken in this order: start, users, supervisor, server. Nobody waits while holding closing.
"""

from __future__ import annotations

import sys
from pathlib import Path

COMMAND = [
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import sys; sys.path.append(sys.argv[1]); from supervisor.main import main; main()",
    str(Path(__file__).parent.parent),
]
"""Runs a supervisor, without the rest of the package."""
