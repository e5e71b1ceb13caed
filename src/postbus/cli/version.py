"""postbus version"""

from __future__ import annotations

import platform

import postbus
from postbus._db import migrator
from postbus.cli._command import Cli
from postbus.cli._render import write_json
from postbus.cli._say import say


def version(cli: Cli) -> None:
    """Print the version."""
    if cli.as_json:
        schema = migrator.migrations()[-1].number
        write_json({"postbus": postbus.__version__, "schema": schema, "python": platform.python_version()})
    else:
        say(f"postbus {postbus.__version__}")
