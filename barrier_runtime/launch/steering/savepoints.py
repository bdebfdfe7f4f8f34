"""Savepoints, as the program that runs a job asks for them and begins with them."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from barrier_runtime.coordinator.client.rest_types import SavepointAsked
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.launch.steering.wishes import ended_before, wait_until_over
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.store.urls import shown, without_credentials


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


def asked_again(asked: SavepointAsked, known: JobStatus) -> SavepointAsked:
    """The same wish that somebody had before, to end the job with a savepoint in that folder, if it is not over or the
    job has ended with it: a command that is repeated is told what came of the first."""
    for each in reversed(known.savepoints):
        same = each.stops and each.url == asked.url and not each.error
        if same and (each.ended_ms is None or known.outcome is not None):
            return SavepointAsked(each.id, asked.url)
    return asked


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

    def over(known: JobStatus) -> SavepointTaken | None:
        taken = savepoint_of(known, asked.id)
        return None if ends and known.outcome is None else taken

    def ended(known: JobStatus) -> Exception:
        return SavepointFailed(ended_before(known, "the savepoint was taken"))

    taken = wait_until_over(over, ended, ask, status, timeout)
    if taken is not None:
        return taken
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
