"""Decisions of phases about the next phase, as values.

`transitions` lists the legal decisions of each phase and makes the next phase, so no phase knows another.
"""

from dataclasses import dataclass
from typing import TypeAlias

from barrier_runtime.coordinator.job.effects import Outcome
from barrier_runtime.coordinator.log.records import Record
from barrier_runtime.coordinator.log.restore_choice import RestoreFrom
from barrier_runtime.coordinator.wire.messages import JobSpec


@dataclass(frozen=True)
class Attempts:
    """Progress of the start. `lost_races`: number of lost races for the log's head.

    `missed`: key of a manifest that was missing although the log named it.
    """

    lost_races: int = 0
    missed: str = ""

    def lost_another(self, missed: str = "") -> "Attempts":
        return Attempts(self.lost_races + 1, missed)


@dataclass(frozen=True)
class LoadLog:
    """Read the log again, because another process has written."""

    attempts: Attempts


@dataclass(frozen=True)
class TakeOver:
    """Take over the newest generation, which is of this run: the slots may be alive."""

    attempts: Attempts


@dataclass(frozen=True)
class BeginGeneration:
    """Begin a generation. `choice`: the restore point; None: the run's newest after open appends.

    `wait_ms`: back-off before slots are deployed. `spec`: the job from now on; None: unchanged. `keep`: see
    `Job.go_on_as`. `visible`: see `HandOver`.
    """

    choice: RestoreFrom | None
    reason: str
    began_ms: int
    wait_ms: int = 0
    attempts: Attempts = Attempts()
    spec: JobSpec | None = None
    keep: bool = False
    visible: bool = True


@dataclass(frozen=True)
class Restart:
    """End the generation; the next begins after the restart policy's delay.

    `unavailable`: a server does not answer. Not `counted`: nothing failed, so the policy is not involved.
    """

    reason: str
    unavailable: bool = False
    counted: bool = True


@dataclass(frozen=True)
class HandOver:
    """Begin the next generation as `spec`.

    `keep`: the present slots stand by until that generation runs. `visible`: sources have stopped, and all their rows
    are visible; if not, the newest checkpoint is restored as after a failure.
    """

    spec: JobSpec
    reason: str
    keep: bool = False
    visible: bool = True


@dataclass(frozen=True)
class Gather:
    """Wait for all slots after FENCE, and deploy from `deploy_from_ms` on."""

    reason: str
    deploy_from_ms: int


@dataclass(frozen=True)
class Run:
    """Run: every slot runs this generation."""

    reason: str


@dataclass(frozen=True)
class FinishJob:
    """Finish: all input has been read, and all rows are visible."""


@dataclass(frozen=True)
class Cancel:
    """End the job by the user's request. Only the leader drops checkpoints, and only on request.

    `visible`: checkpoint of the stop, whose rows all sinks show; 0: the job stops at once.
    """

    visible: int = 0


@dataclass(frozen=True)
class Fail:
    """Fail with a permanent error, if this process still leads."""

    error: str


@dataclass(frozen=True)
class FencedBy:
    """Stop: `record` is at this process's log position, so another coordinator owns the job."""

    record: Record


@dataclass(frozen=True)
class EndJob:
    """End at once. "failed": the job cannot continue, and only a person can change that."""

    outcome: Outcome
    reason: str


Decision: TypeAlias = (
    LoadLog
    | TakeOver
    | BeginGeneration
    | Restart
    | HandOver
    | Gather
    | Run
    | FinishJob
    | Cancel
    | Fail
    | FencedBy
    | EndJob
)
