"""The interface of all phases. A phase takes events, changes the facts in `Job` and decides: it returns what it wants
to come next (`decisions`), and `transitions` makes the phase that follows.

The defaults are what is right in most phases: answers that belong to nothing are dropped, a foreign record in the log
means that this coordinator was fenced, a store that refuses ends the job.
"""

from barrier_runtime.coordinator.job.decisions import Cancel, Decision, EndJob, FencedBy
from barrier_runtime.coordinator.job.events import Listed
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.slots import Arrival, RegisteredSlot
from barrier_runtime.coordinator.job.stop import StopNow
from barrier_runtime.coordinator.log.decision_log import Appended, Foreign, LogView
from barrier_runtime.coordinator.wire.messages import ToCoordinator


class Phase:
    name = "phase"
    reason = ""
    judges_silence = False  # whether `on_tick` ends the generation of a slot that is silent for too long

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        """The phase begins."""
        return None

    def deadline(self, job: Job) -> int | None:
        """When `on_tick` should be called next."""
        return None

    def on_tick(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Decision | None:
        """A slot registered and has its place."""
        return None

    def on_slot_lost(self, job: Job, slot: RegisteredSlot, now_ms: int) -> Decision | None:
        return None

    def on_message(self, job: Job, slot: RegisteredSlot, message: ToCoordinator, now_ms: int) -> Decision | None:
        """A message of the present generation (all others were counted and dropped)."""
        return None

    def listens_to(self, job: Job) -> int | None:
        """The generation whose slots are heard although this process does not lead it (yet)."""
        return None

    def on_log(self, job: Job, view: LogView, now_ms: int) -> Decision | None:
        return None

    def on_appended(self, job: Job, appended: Appended, now_ms: int) -> Decision | None:
        return None

    def on_foreign(self, job: Job, foreign: Foreign, now_ms: int) -> Decision | None:
        """Another writer took our place in the log."""
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
        """One was asked for, or its copy is made or failed."""
        return None

    def on_rescale(self, job: Job, now_ms: int) -> Decision | None:
        """One was asked for, or a standby came."""
        return None

    def on_trigger(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def on_stop(self, job: Job, now_ms: int) -> Decision | None:
        """The user wants the job to end; `job.stop` says how. A last checkpoint has to wait until the job runs."""
        return Cancel() if isinstance(job.stop, StopNow) else None

    def on_refused(self, job: Job, error: str, now_ms: int) -> Decision | None:
        """The store can't be used (permissions, damage)."""
        return EndJob("failed", error)
