"""What a program asks of a coordinator and waits for, while that may be restarted: a savepoint, a rescale."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.state.errors import Unavailable

_POLL_S = 0.05
_Result = TypeVar("_Result")


def wait_until_over(
    over: Callable[[JobStatus], _Result | None],
    ended: Callable[[str], Exception],
    ask: Callable[[], object],
    status: Callable[[], JobStatus | None],
    timeout: float | None = None,
) -> _Result | None:
    """What `over` finds in a status; None after `timeout` seconds. `status`: None while the coordinator is being
    restarted; one that was does not know of the wish, and hears it again by `ask`. Raises what `over` raises, and
    `ended(outcome)` when the job has ended before."""
    until = None if timeout is None else time.monotonic() + timeout
    leader = ""
    while until is None or time.monotonic() < until:
        known = status()
        if known is not None:
            result = over(known)
            if result is not None:
                return result
            if known.outcome is not None:
                raise ended(known.outcome)
            if known.leader != leader:
                try:
                    ask()
                    leader = known.leader
                except Unavailable:
                    pass  # away again: the next status tells
        time.sleep(_POLL_S)
    return None


def known_status(client: Any, job: str, run_id: str) -> JobStatus | None:
    """None while nobody answers."""
    try:
        status: JobStatus = client.status(job, run_id)
    except Unavailable:
        return None
    return status
