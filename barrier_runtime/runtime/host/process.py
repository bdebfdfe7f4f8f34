"""Garbage collection, allocator, interpreter settings and metrics of a slot's process.

Pauses of the garbage collector are the tail of the latency: imports, most of the heap, are frozen, and so is a
generation with very many objects.
"""

import contextlib
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
from barrier_runtime.state.libc import libc
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.use import counts_of
from barrier_runtime.state.threads import ask_for_short_slices

_MANY = 100_000  # objects: about 30 ms of a collection


class Heap:
    def __init__(self) -> None:
        self._generation_frozen = False

    def begin(self) -> None:
        """Freezes imports, and remains of an earlier slot."""
        self.trim(True)
        gc.freeze()

    def trim(self, dropped: bool) -> None:
        """Collects garbage after a restore or (`dropped`) after a generation was dropped."""
        if dropped and self._generation_frozen:
            gc.unfreeze()
            self._generation_frozen = False
        gc.collect()
        if dropped:
            return_freed_memory()
        if not self._generation_frozen and _tracked() > _MANY:
            gc.freeze()
            self._generation_frozen = True


def _tracked() -> int:
    """Counts tracked objects in one step of the interpreter, else another thread that is filling a listed
    tuple could get a SystemError.
    """
    return next(map(len, map(gc.get_objects, (None,))))


PROCESS_HEAP = Heap()


# Time for which a worker thread may keep the interpreter from the loop (default: 5 ms).
_SWITCH_INTERVAL_S = 0.0005
_GC_THRESHOLDS = (50_000, 50, 1_000)  # full collections are rare


def tune_interpreter() -> None:
    """Tunes the process and the calling thread, the loop's, permanently."""
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    ask_for_short_slices()
    keep_freed_memory()


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


# Settings of glibc's allocator for a slot, whose batches make and free arrays of 0.1 to 4 MB all the time.
#
# By default glibc returns such an array to the kernel at once, and each new array costs a page fault per 4 KB: more
# than half of the time of `last_of_groups` (benchmarks/figures.md).

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
MOST_KEPT_BYTES = 64 << 20  # free memory at the end of each heap that stays with the process
_LARGE_BYTES = 4 << 20  # larger arrays, such as columns of state, come from the kernel and return to it


def keep_freed_memory() -> bool:
    """Keeps freed arrays for the next batch, for good. False, without a change: another allocator."""
    with contextlib.suppress(AttributeError, OSError):  # musl and macOS lack mallopt
        mallopt = libc().mallopt
        return bool(mallopt(_MMAP_THRESHOLD, _LARGE_BYTES) and mallopt(_TRIM_THRESHOLD, MOST_KEPT_BYTES))
    return False


def return_freed_memory() -> None:
    """Returns the free memory of all heaps to the kernel: threads have heaps of their own."""
    with contextlib.suppress(AttributeError, OSError):  # musl and macOS lack malloc_trim
        libc().malloc_trim(0)
