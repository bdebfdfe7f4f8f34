"""How Python runs in a slot's process: for a loop that must answer soon. Not for a process of the user's program."""

import gc
import sys

from barrier_runtime.state.time_slice import ask_for_short_slices

_SWITCH_INTERVAL_S = 0.0005  # how long a worker thread may keep the loop waiting for the interpreter (default: 5 ms)
_GC_THRESHOLDS = (50_000, 50, 1_000)  # full collections are rare: their pauses are tail latency


def tune_interpreter() -> None:
    """For the calling thread, which will run the loop, and its process, for good."""
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    ask_for_short_slices()
