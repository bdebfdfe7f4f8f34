"""What Python's garbage collector walks in a slot's process, and when. Its pauses are the tail of the latency.

Imports live for ever and are most of the heap: they are frozen, which means that the collector leaves them out. Of a
dropped generation circles of objects remain, caches and all, so a collection follows; without the imports it takes
milliseconds. Only where a generation itself has made very many objects, as by imports of its functions, is it frozen
too, and then everything has to be walked once to get rid of it.

How Python runs in a slot's process: for a loop that must answer soon. Not for a process of the user's program.

The metrics of a slot's process, as its heartbeats tell them. Those of a generation are `Execution.figures`.
"""

import gc
import os
import sys

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
from barrier_runtime.state.threads import ask_for_short_slices

_MANY = 100_000  # objects: some 30 ms of a collection


class Heap:
    """Of this process. Not for one that belongs to the user's program."""

    def __init__(self) -> None:
        self._generation_frozen = False

    def begin(self) -> None:
        """Before a slot begins: what is there was imported, or is left of an earlier slot."""
        self.trim(True)
        gc.freeze()

    def trim(self, dropped: bool) -> None:
        """When a generation has restored, or, `dropped`, was dropped."""
        if dropped and self._generation_frozen:
            gc.unfreeze()
            self._generation_frozen = False
        gc.collect()
        if not self._generation_frozen and _tracked() > _MANY:
            gc.freeze()
            self._generation_frozen = True


def _tracked() -> int:
    """How many objects the collector walks, counted in one step of the interpreter: no other thread runs in between.

    The list of them refers to each, also to a tuple that another thread is still filling from a generator; if that
    thread ran while the list is there, it would get a SystemError ("bad argument to internal function").
    """
    return next(map(len, map(gc.get_objects, (None,))))


PROCESS_HEAP = Heap()


_SWITCH_INTERVAL_S = 0.0005  # how long a worker thread may keep the loop waiting for the interpreter (default: 5 ms)
_GC_THRESHOLDS = (50_000, 50, 1_000)  # full collections are rare: their pauses are tail latency


def tune_interpreter() -> None:
    """For the calling thread, which will run the loop, and its process, for good."""
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    ask_for_short_slices()


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
