"""The driver's wait for a server that does not answer when a source lists its splits: as long as the job's restart
strategy allows, as slots wait (see `coordinator.checkpoints.failures`)."""

import logging
import time
from collections.abc import Sequence

from barrier_runtime.connectors.source import Source, Split
from barrier_runtime.coordinator.checkpoints.failures import RestartPolicy
from barrier_runtime.graph.compiler import ListSplits
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.restart_options import restart_options
from barrier_runtime.state.errors import Unavailable

log = logging.getLogger("barrier_runtime.job")

_AGAIN_S = 0.2  # doubles every time, …
_AGAIN_MOST_S = 10.0  # … up to this
_TELL_AGAIN_S = 60.0


def patient_listing(options: JobOptions) -> ListSplits:
    """For `compile_plan`. The function raises the last `Unavailable` when the time is over."""
    wait_limit_ms = RestartPolicy(restart_options(options)).wait_limit_ms
    allowed = "sets no end" if wait_limit_ms is None else f"allows {wait_limit_ms / 1000:g} s"

    def list_splits(source: Source, parallelism: int) -> Sequence[Split]:
        began_s, told_s, pause_s = time.monotonic(), float("-inf"), _AGAIN_S
        while True:
            try:
                return source.splits(parallelism)
            except Unavailable as error:
                now_s = time.monotonic()
                if wait_limit_ms is not None and now_s - began_s + pause_s > wait_limit_ms / 1000:
                    raise
                if now_s - told_s >= _TELL_AGAIN_S:
                    waited = f"{now_s - began_s:.0f} s so far, restart={options.restart!r} {allowed}"
                    log.warning("the job waits to begin (%s): %s", waited, error)
                    told_s = now_s
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_MOST_S)

    return list_splits
