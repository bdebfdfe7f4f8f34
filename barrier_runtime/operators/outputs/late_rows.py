"""Warning, with remedy, about the first late row that a window or join drops."""

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from barrier_runtime.coordinator.metric_table import Counter
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.metrics import MetricGroup

Ints = npt.NDArray[np.int64]

log = logging.getLogger("barrier_runtime")


def warn_of_first_late(
    metrics: MetricGroup,
    counter: Counter,
    where: str,
    late: npt.NDArray[np.bool_],
    at: Callable[[], tuple[Ints, Ints]],
) -> None:
    """Logs the first row of the mask `late` with its watermark, unless `counter` has counted before.
    `at` returns event times and watermarks (ms) per row of the mask."""
    if late.any() and not metrics.counts.get(counter.name):
        times_ms, watermarks_ms = at()
        first = int(np.argmax(late))
        log.warning(
            "%s dropped a late row: its event time is %s, the watermark was %s already. Further late rows are counted "
            "(%s) and not logged. late=True returns late rows as a stream of their own; a larger max_out_of_orderness "
            "at the source waits longer for late rows",
            where,
            _in_utc(int(times_ms[first])),
            _in_utc(int(watermarks_ms[first])),
            counter.name,
        )


def _in_utc(ms: int) -> str:
    return "the end of all input" if ms == WATERMARK_MAX else f"{str(np.datetime64(ms, 'ms')).replace('T', ' ')} UTC"
