"""The commands `rescale`, `replace` and `leave`."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barrier_runtime.launch.requests import (
    Replaced,
    Rescaled,
    known_status,
    own_flow,
    replace_asked,
    rescale_asked,
    wait_for_replace,
    wait_for_rescale,
)
from barrier_runtime.spark.task import is_alive, local_root
from barrier_runtime.state.errors import InvalidJob


def rescale(client: Any, job: str, parallelism: int, timeout: float) -> Rescaled:
    run_id, asked = client.status(job).run_id, rescale_asked(parallelism, timeout)
    return wait_for_rescale(
        job, asked, lambda: client.rescale(job, asked, run_id), lambda: known_status(client, job, run_id)
    )


def replace(client: Any, job: str, flow: str, timeout: float, *, allow_non_restored: bool = False) -> Replaced:
    """`flow`: "app.py:flow" on the machine of the process that runs the job."""
    run_id = client.status(job).run_id
    asked = replace_asked(own_flow(flow), timeout, allow_non_restored=allow_non_restored)
    return wait_for_replace(
        job, asked, lambda: client.replace(job, asked, run_id), lambda: known_status(client, job, run_id)
    )


def signal_own_slots() -> int:
    number = getattr(signal, "SIGPWR", None)
    if number is None:
        raise InvalidJob("this system has no SIGPWR: name the host, as in `leave --host HOST`")
    signalled = 0
    for pid in _own_slots():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if _expects(pid, number):
                os.kill(pid, number)
                signalled += 1
    return signalled


def _expects(pid: int, number: int) -> bool:
    """False for a process that the signal would end: a slot that starts, or another process in a container."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigBlk:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def _own_slots() -> Iterator[int]:
    """Process ids, from the names of the folders that living slots hold."""
    for entry in sorted(local_root("any").parent.glob("*/*-*-*")):
        pid = entry.name.split("-")[1]
        if pid.isdecimal() and is_alive(entry):
            yield int(pid)
