"""What a program asks of a coordinator and waits for, while that may be restarted: a savepoint, a rescale."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from barrier_runtime.coordinator.status.status import JobStatus, RescaleStatus
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable

_POLL_S = 0.05
_Result = TypeVar("_Result")


def wait_until_over(
    over: Callable[[JobStatus], _Result | None],
    ended: Callable[[JobStatus], Exception],
    ask: Callable[[], object],
    status: Callable[[], JobStatus | None],
    timeout: float | None = None,
) -> _Result | None:
    """What `over` finds in a status; None after `timeout` seconds. `status`: None while the coordinator is being
    restarted; one that was does not know of the wish, and hears it again by `ask`. Raises what `over` raises, and
    `ended(status)` when the job has ended before."""
    until = None if timeout is None else time.monotonic() + timeout
    leader = ""
    while until is None or time.monotonic() < until:
        known = status()
        if known is not None:
            result = over(known)
            if result is not None:
                return result
            if known.outcome is not None:
                raise ended(known)
            if known.leader != leader:
                try:
                    ask()
                    leader = known.leader
                except Unavailable:
                    pass  # away again: the next status tells
        time.sleep(_POLL_S)
    return None


def wait_for_change(
    job: str,
    id: str,
    failed: type[BarrierRuntimeError],
    became: str,
    stays: Callable[[RescaleStatus], str],
    ask: Callable[[], object],
    status: Callable[[], JobStatus | None],
) -> RescaleStatus:
    """The change `id` of a running job (other slots, another program) when it is done. `became`: what it does, as in
    "it was rescaled"; `stays`: what the job has otherwise. Raises `failed` when the job goes on as it was, or has ended
    before. `ask`, `status`: as of `wait_until_over`."""

    def over(known: JobStatus) -> RescaleStatus | None:
        found = next((each for each in known.rescales if each.id == id), None)
        if found is None or found.ended_ms is None:
            return None
        if found.error and known.outcome is not None:
            return None  # a job that has ended goes on with nothing: `ended_before` tells why
        if found.error:
            raise failed(f"job {job} goes on with {stays(found)}: {found.error}")
        return found

    changed = wait_until_over(over, lambda known: failed(ended_before(known, became)), ask, status)
    assert changed is not None, "without a timeout it is waited for"
    return changed


def ended_before(status: JobStatus, became: str) -> str:
    """For people: the wish is void, because the job has ended, and why, where that was not their wish, too."""
    why = "" if status.outcome in ("finished", "cancelled") else f": {status.error or status.reason}"
    return f"job {status.job} ended ({status.outcome}) before {became}{why}"


def known_status(client: Any, job: str, run_id: str) -> JobStatus | None:
    """None while nobody answers."""
    try:
        status: JobStatus = client.status(job, run_id)
    except Unavailable:
        return None
    return status
