"""Mutants of what is recorded, and of the reasons that are read from it."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "usual-is-what-came-after",
        "what is usual is said by the checkpoints before the one that is asked about",
        "coordinator/status/why.py",
        'if each.outcome == "complete" and each.checkpoint < record.checkpoint and each.parts',
        'if each.outcome == "complete" and each.parts',
        ("tests/coordinator/status/test_why.py",),
    ),
    Mutant(
        "large-state-is-a-slow-store",
        "a checkpoint with much more state than usual is not put down to the store",
        "coordinator/status/why.py",
        "if self._much_state and writing.async_ms",
        "if not self._much_state and writing.async_ms",
        ("tests/coordinator/status/test_why.py",),
    ),
    Mutant(
        "shares-over-generations",
        "shares are not computed over the beginning of a generation",
        "coordinator/status/shares.py",
        "if token != self._token or (",
        "if (",
        ("tests/coordinator/status/test_shares.py",),
    ),
    Mutant(
        "series-without-bound",
        "an operator has no more series than are allowed, however much it counts",
        "coordinator/status/exposed.py",
        "or told[operator] >= PER_OPERATOR:",
        "or told[operator] < 0:",
        ("tests/coordinator/status/test_exposed.py",),
    ),
    Mutant(
        "blocked-from-now-on-counts-before",
        "the time between two looks counts as it was at the first of them",
        "barrier_runtime/runtime/load.py",
        "        if self.blocked:\n            self.blocked_s += since_last_s\n",
        "        if blocked:\n            self.blocked_s += since_last_s\n",
        ("tests/barrier_runtime/runtime/test_load.py",),
    ),
    Mutant(
        "names-are-markup",
        "names of jobs and operators are plain text on a terminal",
        "barrier_runtime/tools/views.py",
        "cell if isinstance(cell, Text) else Text(cell)",
        "cell",
        ("tests/barrier_runtime/tools/test_views.py",),
    ),
    Mutant(
        "ids-of-a-process",
        "every process makes the same ids for a checkpoint's trace",
        "coordinator/status/spans.py",
        '"\\0".join(map(str, parts)).encode()',
        '"\\0".join([*map(str, parts), str(hash(parts))]).encode()',
        ("tests/coordinator/status/test_spans.py",),
    ),
)
