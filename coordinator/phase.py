"""What every phase of a job's life answers to. A phase decides, changes the facts in `Job`, and names its successor.

The defaults are what is right in most phases: answers that belong to nothing are dropped, a foreign record in the log
means that this coordinator was fenced, a store that refuses ends the job.
"""

from coordinator.decision_log import Foreign, Landed, LogView
from coordinator.events import Listed
from coordinator.job import Job
from coordinator.messages import ToCoordinator
from coordinator.slots import Arrival, Slot


class Phase:
    name = "phase"
    reason = ""
    judges_silence = False  # whether `on_tick` ends the generation of a slot that is silent for too long

    def enter(self, job: Job, now_ms: int) -> "Phase | None":
        """The phase begins. Returns the next one when it is over at once."""
        return None

    def deadline(self, job: Job) -> int | None:
        """When `on_tick` should be called next."""
        return None

    def on_tick(self, job: Job, now_ms: int) -> "Phase | None":
        return None

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> "Phase | None":
        """A slot registered and has its place."""
        return None

    def on_slot_lost(self, job: Job, slot: Slot, now_ms: int) -> "Phase | None":
        return None

    def on_message(self, job: Job, slot: Slot, message: ToCoordinator, now_ms: int) -> "Phase | None":
        """A message of the present generation (all others were counted and dropped)."""
        return None

    def listens_to(self, job: Job) -> int | None:
        """The generation whose slots are heard although this process does not lead it (yet)."""
        return None

    def on_log(self, job: Job, view: LogView, now_ms: int) -> "Phase | None":
        return None

    def on_landed(self, job: Job, landed: Landed, now_ms: int) -> "Phase | None":
        return None

    def on_foreign(self, job: Job, foreign: Foreign, now_ms: int) -> "Phase | None":
        """Another writer took our place in the log."""
        from coordinator.phase_ended import fenced

        return fenced(job, foreign.entry.record)

    def on_manifest_read(self, job: Job, key: str, data: bytes | None, now_ms: int) -> "Phase | None":
        return None

    def on_manifest_written(self, job: Job, key: str, now_ms: int) -> "Phase | None":
        return None

    def on_manifest_failed(self, job: Job, key: str, error: str, now_ms: int) -> "Phase | None":
        return None

    def on_listed(self, job: Job, listed: Listed, now_ms: int) -> "Phase | None":
        return None

    def on_deleted_all(self, job: Job, error: str, now_ms: int) -> "Phase | None":
        return None

    def on_trigger(self, job: Job, now_ms: int) -> "Phase | None":
        return None

    def on_stop(self, job: Job, now_ms: int) -> "Phase | None":
        """The user wants the job to end; `job.stop` says how. A last checkpoint has to wait until the job runs."""
        from coordinator.phase_ended import cancel

        return cancel(job) if job.stop == "now" else None

    def on_refused(self, job: Job, error: str, now_ms: int) -> "Phase | None":
        """The store can't be used (permissions, damage)."""
        from coordinator.phase_ended import failed

        return failed(job, error)
