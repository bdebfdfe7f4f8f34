"""Savepoints, as the program that runs a job asks for them and begins with them."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from barrier_runtime.coordinator.client.rest_types import SavepointAsked
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.store.urls import shown, without_credentials

_POLL_S = 0.05


class SavepointFailed(BarrierRuntimeError):
    """There is no savepoint; the job goes on."""


@dataclass(frozen=True)
class SavepointTaken:
    """`url`: the folder, which can be copied or moved whole. `bytes`: of its files."""

    url: str
    checkpoint: int
    bytes: int
    taken_at: datetime


def is_savepoint_url(restore: str) -> bool:
    return "/" in restore


def asked_at(url: str) -> SavepointAsked:
    """A new wish for a savepoint in the folder `url`. A path is made absolute: who writes it runs elsewhere."""
    if not url.strip():
        raise InvalidJob("the savepoint's folder is empty: give a URL such as s3://bucket/savepoints/orders-1")
    if "://" not in url:
        url = Path(url).expanduser().absolute().as_uri()
    return SavepointAsked(uuid.uuid4().hex, without_credentials(url, "the savepoint's folder"))


def wait_for_savepoint(
    job: str,
    asked: SavepointAsked,
    ask: Callable[[], object],
    status: Callable[[], JobStatus | None],
    timeout: float | None,
    *,
    ends: bool = False,
) -> SavepointTaken:
    """Until it is there, and with `ends` the job has ended, too. `status`: None while the coordinator is being
    restarted; one that was does not know of the wish, and hears it again by `ask`. Raises `SavepointFailed`, or
    `Unavailable` when `timeout` (seconds) is over."""
    until = None if timeout is None else time.monotonic() + timeout
    leader = ""
    while until is None or time.monotonic() < until:
        known = status()
        if known is not None:
            taken = savepoint_of(known, asked.id)
            if taken is not None and not (ends and known.outcome is None):
                return taken
            if known.outcome is not None:
                raise SavepointFailed(f"job {job} ended ({known.outcome}) before the savepoint was taken")
            if known.leader != leader:
                try:
                    ask()
                    leader = known.leader
                except Unavailable:
                    pass  # away again: the next status tells
        time.sleep(_POLL_S)
    raise Unavailable(
        f"the savepoint of job {job} was not there after {timeout} s: it may still come to {shown(asked.url)}; "
        "`barrier-runtime status` tells what the job waits for"
    )


def savepoint_of(status: JobStatus, id: str) -> SavepointTaken | None:
    """None: not yet. Raises `SavepointFailed`."""
    found = next((each for each in status.savepoints if each.id == id), None)
    if found is None or found.ended_ms is None:
        return None
    if found.error:
        raise SavepointFailed(f"job {status.job} has no savepoint in {shown(found.url)}: {found.error}")
    taken_at = datetime.fromtimestamp(found.ended_ms / 1000, timezone.utc)
    return SavepointTaken(found.url, found.checkpoint or 0, found.bytes, taken_at)
