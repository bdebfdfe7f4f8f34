"""What a phase wants to come after it, as values. `transitions` says which of them each phase may want, and makes the
next phase; so no phase knows another one.
"""

from dataclasses import dataclass
from typing import TypeAlias

from barrier_runtime.coordinator.job.effects import Outcome
from barrier_runtime.coordinator.log.records import Record
from barrier_runtime.coordinator.log.restore_choice import RestoreFrom
from barrier_runtime.coordinator.wire.messages import JobSpec


@dataclass(frozen=True)
class Attempts:
    """How the start went so far. `lost_races`: how often another writer was faster. `missed`: the manifest that was not
    there, although the log read before named it."""

    lost_races: int = 0
    missed: str = ""

    def lost_another(self, missed: str = "") -> "Attempts":
        return Attempts(self.lost_races + 1, missed)


@dataclass(frozen=True)
class LoadLog:
    """Somebody else has written: read the log again."""

    attempts: Attempts


@dataclass(frozen=True)
class TakeOver:
    """The newest generation is of this run: its slots may be alive."""

    attempts: Attempts


@dataclass(frozen=True)
class BeginGeneration:
    """`choice`: what it restores; None: what the run has reached when all that is under way is settled. `wait_ms`:
    back-off before slots are deployed. `spec`: the job from now on; None: as before. `keep`: see `Job.go_on_as`."""

    choice: RestoreFrom | None
    reason: str
    began_ms: int
    wait_ms: int = 0
    attempts: Attempts = Attempts()
    spec: JobSpec | None = None
    keep: bool = False


@dataclass(frozen=True)
class Restart:
    """The generation can't go on: the next one, after the restart policy's delay. `unavailable`: a server does not
    answer. Not `counted`: nothing failed, so the policy is not asked."""

    reason: str
    unavailable: bool = False
    counted: bool = True


@dataclass(frozen=True)
class HandOver:
    """Sources have stopped, and all they have read is visible: the next generation is of the job as `spec` has it, with
    other slots. `keep`: the slots so far stand by until it runs."""

    spec: JobSpec
    reason: str
    keep: bool = False


@dataclass(frozen=True)
class Gather:
    """FENCE is appended: wait for all slots, and deploy to them from `deploy_from_ms` on."""

    reason: str
    deploy_from_ms: int


@dataclass(frozen=True)
class Run:
    """Every slot runs this generation."""

    reason: str


@dataclass(frozen=True)
class FinishJob:
    """All input has been read, and all of it is visible."""


@dataclass(frozen=True)
class Cancel:
    """The user wants the job to end. Only the leader drops checkpoints, and only when asked to."""


@dataclass(frozen=True)
class Fail:
    """What happened can't be cured, if this process still leads."""

    error: str


@dataclass(frozen=True)
class FencedBy:
    """`record` stands where ours should: another coordinator owns the job."""

    record: Record


@dataclass(frozen=True)
class EndJob:
    """At once. "failed": the job can't go on, and only a person can change that."""

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
