"""How a job ended, as the caller of `run` sees it: a result, or the error that says why."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from barrier_runtime.coordinator.metric_table import SKIPPED_ROWS
from barrier_runtime.coordinator.status.metrics import over_slots
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.operators.user_code import from_users_frame
from barrier_runtime.state.errors import BarrierRuntimeError, Fenced, InvalidJob, UserCodeError, is_internal

_ENOUGH = 300  # characters that tell one error from others; long ones are shortened on their way


class JobFailed(BarrierRuntimeError):
    """The job ended in failure; the text ends with the remedy. If a function of the user raised, `__cause__` is that
    exception after `run_local`; on Spark the text begins with its traceback. `told` is all of it as text."""

    def __init__(self, message: str, status: JobStatus | None = None, told: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.told = told or message


@dataclass(frozen=True, repr=False)
class JobResult:
    """`status` is the coordinator's last word on the job."""

    status: JobStatus

    @property
    def records(self) -> int:
        """Rows that the sources have read, each counted once however often it was replayed."""
        return self.status.records

    def __str__(self) -> str:
        """One line for people; everything else is in `status`."""
        checkpoints = self.status.checkpoints
        last = (
            f", the last is {checkpoints.last_completed.checkpoint}" if checkpoints.last_completed is not None else ""
        )
        skipped = over_slots(SKIPPED_ROWS, (slot.metrics for slot in self.status.slots))
        return (
            f"job {self.status.job} {self.status.outcome}: {self.records:,} records read, "
            f"{f'{skipped:,.0f} rows skipped, ' if skipped else ''}{checkpoints.completed} checkpoints completed{last}"
        )

    def __repr__(self) -> str:
        return f"<JobResult: {self}>"


@contextmanager
def interruption_told(job: str, goes_on: bool) -> Iterator[None]:
    """Ctrl-C within leaves with what has become of the job, instead of the frames in which it happened to come.
    `goes_on`: whether there are checkpoints that the next run finds."""
    try:
        yield
    except KeyboardInterrupt:
        then = "; the next run goes on from there" if goes_on else ""
        raise KeyboardInterrupt(f"job {job} was stopped; what its last checkpoint covers is committed{then}") from None


def how_to_stop(mode: str, drain: bool, savepoint: str | None = None) -> Literal["checkpoint", "drain", "now"]:
    """What `stop` of a handle asks the coordinator for. Raises `InvalidJob` for what cannot be meant."""
    if mode not in ("checkpoint", "now"):
        raise InvalidJob(
            f"stop: mode={mode!r}: use 'checkpoint' (after a last one) or 'now'; drain=True ends the sources first"
        )
    if savepoint is not None and mode == "now":
        raise InvalidJob('stop("now") takes no last checkpoint, so there can be no savepoint: use "checkpoint"')
    if drain and mode == "now":
        raise InvalidJob('stop("now") does not wait for what draining emits: use "checkpoint"')
    return "drain" if drain else "now" if mode == "now" else "checkpoint"


def raise_unless_ended_well(status: JobStatus, troubles: Sequence[BaseException] = ()) -> None:
    """`Fenced` when another run took the job over, `JobFailed` when it failed; nothing when finished or stopped.
    `troubles`: what slots of this process raised."""
    if status.outcome in ("fenced", "replaced"):
        raise Fenced(status.error or status.reason)
    if status.outcome not in ("finished", "cancelled"):
        told = status.error or status.reason or f"job {status.job} ended as {status.outcome}"
        for trouble in troubles:
            if trouble.__cause__ is not None and str(trouble)[:_ENOUGH] in told and not is_internal(trouble):
                message = str(trouble.args[0]) if isinstance(trouble, UserCodeError) else told
                raise JobFailed(message, status, told) from from_users_frame(trouble.__cause__)
        raise JobFailed(told, status)
