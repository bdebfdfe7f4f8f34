"""How a job ended, as the caller of `run` sees it: a result, or the error that says why."""

from dataclasses import dataclass

from coordinator.status import JobStatus
from state.errors import BarrierRuntimeError, Fenced


class JobFailed(BarrierRuntimeError):
    """The job ended in failure; the text is the user's traceback, if there is one, and the remedy."""

    def __init__(self, message: str, status: JobStatus | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, repr=False)
class JobResult:
    """`status` is the coordinator's last word on the job."""

    status: JobStatus

    @property
    def records(self) -> int:
        return self.status.records

    def __str__(self) -> str:
        """One line for people; everything else is in `status`."""
        checkpoints = self.status.checkpoints
        last = (
            f", the last is {checkpoints.last_completed.checkpoint}" if checkpoints.last_completed is not None else ""
        )
        return (
            f"job {self.status.job} {self.status.outcome}: {self.records:,} records read, "
            f"{checkpoints.completed} checkpoints completed{last}"
        )

    def __repr__(self) -> str:
        return f"<JobResult: {self}>"


def raise_unless_ended_well(status: JobStatus) -> None:
    """`Fenced` when another run took the job over, `JobFailed` when it failed; nothing when finished or stopped."""
    if status.outcome in ("fenced", "replaced"):
        raise Fenced(status.error or status.reason)
    if status.outcome not in ("finished", "cancelled"):
        raise JobFailed(status.error or status.reason or f"job {status.job} ended as {status.outcome}", status)
