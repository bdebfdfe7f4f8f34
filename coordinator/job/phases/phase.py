"""Interface of phases: takes events, changes `Job`, returns a decision for `transitions`."""

from barrier_runtime.coordinator.job.decisions import Cancel, Decision, EndJob, FencedBy
from barrier_runtime.coordinator.job.events import Listed
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.slot import Arrival, RegisteredSlot
from barrier_runtime.coordinator.job.stop import StopNow
from barrier_runtime.coordinator.log.decision_log import Appended, Foreign, LogView
from barrier_runtime.coordinator.status.status import SilentLink
from barrier_runtime.coordinator.wire.messages import ToCoordinator


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

    def on_incompatible(self, job: Job) -> Decision | None:
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
