"""The command `report`: a job's page as one file, from its coordinator or an ended job's checkpoints.

The file is written under a temporary name first, so it is complete or missing. The file has no script and loads
nothing; apparent secrets are masked (`state/masked_text`).
"""

import os
import time
from pathlib import Path

from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.page import render
from barrier_runtime.coordinator.status.history import decode_history
from barrier_runtime.coordinator.status.past_run import past_status
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.object_store import get_or_none
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.urls import shown
from barrier_runtime.tools.coordinators import client_of


def report(job: str, to: Path, coordinator: str | None, token_file: Path | None, checkpoints: str | None) -> int:
    """Writes the report of `job` to `to`; returns its size in bytes. Raises `InvalidJob` or `Unavailable`."""
    if coordinator is not None and checkpoints is not None:
        raise InvalidJob("--coordinator is for a running job, --checkpoints for an ended job: leave one of them out")
    if checkpoints is not None:
        data = _from_store(check_job_id(job), checkpoints)
    else:
        data = client_of(job, coordinator, token_file).report(job)
    write(to, data)
    return len(data)


def write(to: Path, data: bytes) -> None:
    beside = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(to)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidJob(f"the report cannot be written to {to}: {error.strerror}: choose another file") from error


def _from_store(job: str, url: str) -> bytes:
    store, paths = open_store(url), Paths(job)
    try:
        view = read_log(store, paths)
        known = get_or_none(store, paths.history)
    except OSError as error:
        raise Unavailable(f"the past of job {job} cannot be read from {shown(url)}: {error}: try again") from error
    history = None if known is None else decode_history(paths.history, known)
    status = past_status(view, history, None)
    if status is None:
        why = "there is no log of it" if view.head is None else "nothing says that it has ended"
        raise InvalidJob(f"job {job} in {shown(url)}: {why}: check both names, or ask its coordinator (--coordinator)")
    return render.report(render.explained(status, time.time_ns() // 1_000_000)).encode()
