"""How long properties are tested: the same short run each time, or a longer and random one on request."""

from __future__ import annotations

import os

import hypothesis

_ASKED_FOR = int(os.environ.get("POSTBUS_TEST_EXAMPLES", "0"))


def examples(usually: int, *, steps: int = 50) -> hypothesis.settings:
    """Run as many examples as POSTBUS_TEST_EXAMPLES says, or as `usually`.

    The usual examples are the same in each run, and a failure is not shrunk, which takes minutes: set the variable to
    see a short example.
    """
    return hypothesis.settings(
        max_examples=_ASKED_FOR or usually,
        stateful_step_count=steps,
        derandomize=not _ASKED_FOR,
        database=None,
        deadline=None,
        print_blob=True,
        phases=[phase for phase in hypothesis.Phase if _ASKED_FOR or phase is not hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
