"""Option `commit_every=` of sinks that commit the checkpoints of a period together."""

import datetime
import math
from numbers import Real

from barrier_runtime.state.errors import InvalidJob

_DAY_MS = 24 * 60 * 60 * 1000


def commit_every_ms(commit_every: datetime.timedelta | float, who: str) -> int:
    """Returns the duration in milliseconds.

    Raises `InvalidJob` for negative durations and for more than a day.
    """
    seconds = commit_every.total_seconds() if isinstance(commit_every, datetime.timedelta) else commit_every
    if isinstance(seconds, Real) and not isinstance(seconds, bool) and math.isfinite(seconds):
        ms = round(float(seconds) * 1000)
        if 0 <= ms <= _DAY_MS and (ms or not seconds):
            return ms
    raise InvalidJob(
        f"{who}: commit_every={commit_every!r}: give a timedelta or seconds, from 0 (a commit for each checkpoint) to "
        "a day, as in commit_every=timedelta(seconds=30)"
    )


def described(commit_every_ms: int) -> str:
    """End of a sink's description in `explain`."""
    return f", a commit every {commit_every_ms / 1000:g} s" if commit_every_ms else ""
