"""The arguments that the driver gives to the producers and consumers it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from faults.modes import MODES, Mode


def parser(about: str | None) -> argparse.ArgumentParser:
    """The options that both have."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--dsn", required=True)
    made.add_argument("--journal", required=True, type=Path)
    made.add_argument("--modes", required=True, type=_modes)
    made.add_argument("--seed", required=True)
    made.add_argument("--stream", default="", help="the address of the NATS server, for modes that need one")
    return made


def _modes(names: str) -> list[Mode]:
    return [MODES[name] for name in names.split(",")]
