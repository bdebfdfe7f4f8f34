"""The command `leave`."""

import contextlib
import os
import signal
from collections.abc import Iterator

from barrier_runtime.spark.task import is_alive, local_root
from barrier_runtime.state.errors import InvalidJob


def signal_own_slots() -> int:
    number = getattr(signal, "SIGPWR", None)
    if number is None:
        raise InvalidJob("this system has no SIGPWR: name the host, as in `leave --host HOST`")
    signalled = 0
    for pid in _own_slots():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            signalled += 1
    return signalled


def _own_slots() -> Iterator[int]:
    """Process ids, from the names of the folders that living slots hold."""
    for entry in sorted(local_root("any").parent.glob("*/*-*-*")):
        pid = entry.name.split("-")[1]
        if pid.isdecimal() and is_alive(entry):
            yield int(pid)
