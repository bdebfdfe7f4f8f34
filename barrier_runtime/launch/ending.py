"""Calls at the end of the program, while threads still take work: a running job takes its last checkpoint then.

`atexit` is too late: before its functions run, the interpreter ends the pools of threads that uploads need.
"""

import atexit
import concurrent.futures.thread  # noqa: F401 - registers its own function for the end before ours, to be called after
import logging
import threading
from collections.abc import Callable

LAST_CHECKPOINT_S = 30.0  # time for the last checkpoint of a job whose program ends

log = logging.getLogger("barrier_runtime")

_calls: dict[object, Callable[[], None]] = {}
_registered = False


def at_end(call: Callable[[], None]) -> Callable[[], None]:
    """Has `call` called when the program ends, and returns a function that cancels this."""
    global _registered
    if not _registered:
        _registered = True
        getattr(threading, "_register_atexit", atexit.register)(_end)
    key = object()
    _calls[key] = call

    def cancel() -> None:
        _calls.pop(key, None)

    return cancel


def _end() -> None:
    for call in list(_calls.values()):
        try:
            call()
        except Exception:
            log.exception("a job could not be stopped while the program ends")


def end_in_time(job: str, stop: Callable[[], object], ended: Callable[[float], bool]) -> None:
    """Stops a running job after a last checkpoint; logs a line if the job has not ended in time.

    `stop` requests the end and does not wait. `ended` waits for seconds, and returns whether the job has ended."""
    if ended(0):
        return
    stop()
    if ended(LAST_CHECKPOINT_S):
        log.warning("job %s was running while its context or program ended: stopped after a last checkpoint", job)
    else:
        log.warning(
            "job %s: its last checkpoint is not complete after %.0f s, so the job stops at once: the next run goes on "
            "from the checkpoint before",
            job,
            LAST_CHECKPOINT_S,
        )
