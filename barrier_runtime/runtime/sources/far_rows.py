"""Tells of a row whose event time is far ahead of this machine's clock.

One such row, and what comes after it is late. It is not an error: nobody else can know what is meant.
"""

import logging

import numpy as np
import pyarrow as pa

from barrier_runtime.coordinator.metric_table import FAR_EVENT_TIMES
from barrier_runtime.data.event_time import event_times_ms
from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.runtime.sources.split_state import OpenSplit

log = logging.getLogger(__name__)

DAY_MS = 86_400_000
FAR_MS = DAY_MS  # ahead of the clock: an event time that is told of


def tell_of_far_row(
    context: OperatorContext, where: str, split: OpenSplit, column: str, times: pa.Array, now_ms: int
) -> None:
    """`times`: of the last rows of `split`; some of them are far."""
    known = event_times_ms(times.drop_null())
    first = int(np.argmax(known > now_ms + FAR_MS))
    at = np.flatnonzero(times.is_valid().to_numpy(zero_copy_only=False))[first]
    time_ms = int(known[first])
    context.metrics.count(FAR_EVENT_TIMES)
    log.warning(
        "%s: row %d of split %r (counted from 0) has the event time %d ms in column %r, %d days ahead of this "
        "machine's clock: rows that come after it will be late; filter or correct such rows where they are written",
        where,
        split.rows - len(times) + at,
        split.id,
        time_ms,
        column,
        (time_ms - now_ms) // DAY_MS,
    )
