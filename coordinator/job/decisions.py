"""Decisions of phases. `transitions` makes the next phase, so no phase knows another."""

from dataclasses import dataclass
from typing import TypeAlias

from barrier_runtime.coordinator.job.effects import Outcome
from barrier_runtime.coordinator.log.records import Record
from barrier_runtime.coordinator.log.restore_choice import RestoreFrom
from barrier_runtime.coordinator.status.generation_status import GenerationKind
from barrier_runtime.coordinator.wire.messages import JobSpec


@dataclass(frozen=True)
class Attempts:
    """`missed`: key of a manifest that the store lacked."""

    lost_races: int = 0
    missed: str = ""

    def lost_another(self, missed: str = "") -> "Attempts":
        return Attempts(self.lost_races + 1, missed)


@dataclass(frozen=True)
class LoadLog:
    """Read the log again: another process has written."""

    attempts: Attempts


@dataclass(frozen=True)
class TakeOver:
    """The newest generation is of this run, so the slots may be alive."""

    attempts: Attempts


@dataclass(frozen=True)
class BeginGeneration:
    """`choice`: the restore point; None: the run's newest, once the open append is answered.

    `wait_ms`: back-off before the deployment. `spec`: None: unchanged.
    """

    choice: RestoreFrom | None
    reason: str
    began_ms: int
    wait_ms: int = 0
    attempts: Attempts = Attempts()
    spec: JobSpec | None = None
    keep: bool = False
    visible: bool = True
    kind: GenerationKind = "recovery"


@dataclass(frozen=True)
class Restart:
    """End the generation; the next begins after the restart policy's delay.

    `unavailable`: a server does not answer. Not `counted`: nothing failed, so there is no delay.
    """

    reason: str
    unavailable: bool = False
    counted: bool = True


@dataclass(frozen=True)
class HandOver:
    """Begin the next generation as `spec`.

    `keep`: the present slots stand by until that generation runs. `visible`: sources have stopped, and all rows are
    visible; else the newest checkpoint is restored as after a failure.
    """

    spec: JobSpec
    reason: str
    keep: bool = False
    visible: bool = True
    kind: GenerationKind = "recovery"


@dataclass(frozen=True)
class Gather:
    reason: str
    deploy_from_ms: int


@dataclass(frozen=True)
class Run:
    reason: str


@dataclass(frozen=True)
class FinishJob:
    """All input has been read, and all rows are visible."""


@dataclass(frozen=True)
class Cancel:
    """Only the leader drops checkpoints.

    `visible`: checkpoint whose rows all sinks show; 0: the job stops at once.
    """

    visible: int = 0


@dataclass(frozen=True)
class Fail:
    error: str


@dataclass(frozen=True)
class FencedBy:
    """Another coordinator leads: `record` is at this process's log position."""

    record: Record


@dataclass(frozen=True)
class EndJob:
    """End at once. "failed": only a person can make the job continue."""

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
