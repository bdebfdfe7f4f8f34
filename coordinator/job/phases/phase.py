"""Interface of phases: takes events, changes `Job`, returns a decision for `transitions`. The decisions."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from barrier_runtime.coordinator.job.effects import Outcome
from barrier_runtime.coordinator.job.events import Listed
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.slot import Arrival, RegisteredSlot
from barrier_runtime.coordinator.job.stop import StopNow
from barrier_runtime.coordinator.log.decision_log import Appended, Foreign, LogView
from barrier_runtime.coordinator.log.records import Record
from barrier_runtime.coordinator.log.restore_choice import RestoreFrom
from barrier_runtime.coordinator.status.generation_status import GenerationKind
from barrier_runtime.coordinator.status.status import SilentLink
from barrier_runtime.coordinator.wire.messages import JobSpec, ToCoordinator

# Decisions of phases. `transitions` makes the next phase, so no phase knows another.


@dataclass(frozen=True)
class Attempts:
    """`missed`: key of a manifest that the store lacked. `checked`: the preflight is over."""

    lost_races: int = 0
    missed: str = ""
    checked: bool = False

    def lost_another(self, missed: str = "") -> "Attempts":
        return replace(self, lost_races=self.lost_races + 1, missed=missed)


@dataclass(frozen=True)
class LoadLog:
    """Read the log again: another process has written."""

    attempts: Attempts


@dataclass(frozen=True)
class Check:
    """Look at the slots' hosts first: an earlier run of the job may be running."""

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
    | Check
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


class Phase:
    name = "phase"
    reason = ""
    judges_silence = False  # whether `on_tick` ends the generation of a silent slot

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def deadline(self, job: Job) -> int | None:
        return None

    def on_tick(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Decision | None:
        return None

    def on_incompatible(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def on_probed(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def on_slot_lost(self, job: Job, slot: RegisteredSlot, now_ms: int) -> Decision | None:
        return None

    def on_silent_links(self, job: Job, links: tuple[SilentLink, ...], now_ms: int) -> Decision | None:
        return None

    def on_message(self, job: Job, slot: RegisteredSlot, message: ToCoordinator, now_ms: int) -> Decision | None:
        """Takes a message of the present generation."""
        return None

    def listens_to(self, job: Job) -> int | None:
        """Generation whose messages count although this process does not lead yet."""
        return None

    def on_log(self, job: Job, view: LogView, now_ms: int) -> Decision | None:
        return None

    def on_appended(self, job: Job, appended: Appended, now_ms: int) -> Decision | None:
        return None

    def on_foreign(self, job: Job, foreign: Foreign, now_ms: int) -> Decision | None:
        """Another writer's record is at this process's log position."""
        return FencedBy(foreign.entry.record)

    def on_manifest_read(self, job: Job, key: str, data: bytes | None, now_ms: int) -> Decision | None:
        return None

    def on_manifest_written(self, job: Job, key: str, now_ms: int) -> Decision | None:
        return None

    def on_manifest_failed(self, job: Job, key: str, error: str, now_ms: int) -> Decision | None:
        return None

    def on_listed(self, job: Job, listed: Listed, now_ms: int) -> Decision | None:
        return None

    def on_deleted_all(self, job: Job, error: str, now_ms: int) -> Decision | None:
        return None

    def on_savepoint(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def on_rescale(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def on_trigger(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def on_stop(self, job: Job, now_ms: int) -> Decision | None:
        """A last checkpoint has to wait until the job runs."""
        return Cancel() if isinstance(job.stop, StopNow) else None

    def on_refused(self, job: Job, error: str, now_ms: int) -> Decision | None:
        return EndJob("failed", error)
