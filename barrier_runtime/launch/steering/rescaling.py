"""Another number of slots for a running job, as the program that runs it, or a command, asks for it."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from barrier_runtime.coordinator.client.rest_types import RescaleAsked
from barrier_runtime.coordinator.status.status import JobStatus, RescaleStatus
from barrier_runtime.launch.steering.wishes import wait_for_change
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob

DEFAULT_TIMEOUT_S = 60.0


class RescaleFailed(BarrierRuntimeError):
    """The job goes on with the slots that it had."""


@dataclass(frozen=True)
class Rescaled:
    """`checkpoint`: that moved to the new slots; None when there was nothing to do. `pause_ms`: from the order to the
    sources to stop until the new slots ran."""

    before: int
    parallelism: int
    checkpoint: int | None
    pause_ms: int


def asked_for(parallelism: int, timeout_s: float) -> RescaleAsked:
    """A new wish. `timeout_s`: for the new slots to come."""
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
        raise InvalidJob(f"parallelism={parallelism!r}: give a whole number of slots, at least 1")
    if not timeout_s > 0:
        raise InvalidJob(f"timeout={timeout_s!r}: give seconds for the new slots to come")
    return RescaleAsked(uuid.uuid4().hex, parallelism, max(1, round(timeout_s * 1000)))


def wait_for_rescale(
    job: str, asked: RescaleAsked, ask: Callable[[], object], status: Callable[[], JobStatus | None]
) -> Rescaled:
    """Until it is over. `status`: None while the coordinator is being restarted; one that was does not know of the
    wish, and hears it again by `ask`. Raises `RescaleFailed`."""

    def stays(found: RescaleStatus) -> str:
        return f"{found.before} slots and not with {found.parallelism}"

    found = wait_for_change(job, asked.id, RescaleFailed, "it was rescaled", stays, ask, status)
    return Rescaled(found.before, found.parallelism, found.checkpoint, found.pause_ms or 0)
