"""How long properties are looked at: the same short run each time, or a longer and random one that is asked for."""

from __future__ import annotations

import os

import hypothesis

_ASKED_FOR = int(os.environ.get("POSTBUS_TEST_EXAMPLES", "0"))


def examples(usually: int, *, steps: int = 50) -> hypothesis.settings:
    """As many examples as POSTBUS_TEST_EXAMPLES says, or as `usually`: these are the same in each run.

    A usual run does not shrink what it finds, which takes minutes: ask for examples to see a short one.
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
