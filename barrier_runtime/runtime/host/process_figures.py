"""The metrics of a slot's process, as its heartbeats tell them. Those of a generation are `Execution.figures`."""

import os

from barrier_runtime.coordinator.metric_table import (
    LOOP_LAG_MS,
    RSS_BYTES,
    STARVED_S,
    STORE_READS,
    STORE_RECEIVED_BYTES,
    STORE_SENT_BYTES,
    STORE_WRITES,
)
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.use import counts_of


def process_figures(store: ObjectStore, starved_s: float, loop_lag_ms: float) -> dict[str, float]:
    used = counts_of(store)
    return {
        LOOP_LAG_MS.name: loop_lag_ms,
        RSS_BYTES.name: float(_rss_bytes()),
        STARVED_S.name: starved_s,
        STORE_WRITES.name: float(used.writes),
        STORE_READS.name: float(used.reads),
        STORE_SENT_BYTES.name: float(used.sent_bytes),
        STORE_RECEIVED_BYTES.name: float(used.received_bytes),
    }


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
