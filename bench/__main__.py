"""Run a scenario: python -m bench queue --json."""

from __future__ import annotations

import sys


def main() -> int:
    # Imported here, since every process that a scenario starts imports this module.
    from bench import arguments

    return arguments.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
