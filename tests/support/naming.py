"""Names of parametrised tests that are the same in every process."""

from __future__ import annotations

import re


def steady(value: object) -> str:
    """Return the value, in ASCII and without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", ascii(value))[:60]
