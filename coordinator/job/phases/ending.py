"""End of a job: the last record, and the shutdown of the slots.

A coordinator replaced by another of the *same* run leaves the slots to the other.
"""

from typing import Literal

from barrier_runtime.coordinator.job.effects import JobEnded, Outcome
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.phases.checkpointing import appended_late
from barrier_runtime.coordinator.job.phases.phase import Decision, EndJob, FencedBy, Phase
from barrier_runtime.coordinator.job.slot import Arrival
from barrier_runtime.coordinator.job.stop import StopNow
from barrier_runtime.coordinator.log.decision_log import Appended, Foreign
from barrier_runtime.coordinator.log.records import Fence, Finish, Lead
from barrier_runtime.coordinator.wire.messages import Shutdown


class Ended(Phase):
    def __init__(self, outcome: Outcome, reason: str, fenced_by: str | None = None) -> None:
        self.outcome = outcome
        self.name = outcome
        self.reason = reason
        self._fenced_by = fenced_by

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        job.lead_no_more()
        job.savepoints.job_ended(self.outcome, now_ms)
        job.fail_rescale(f"the job ended: {self.outcome}", now_ms)
        job.rescales.fail(f"the job ended: {self.outcome}", now_ms)
        if self.outcome != "replaced":
            job.admit(f"the job ended: {self.outcome}")
        job.record.fenced_by = self._fenced_by or job.record.fenced_by
        if self.outcome in ("failed", "fenced"):
            job.record.error = self.reason
        if job.generation.pending is not None:
            for checkpoint in job.generation.pending.abort_all(now_ms):
                job.record.checkpoint_ended(checkpoint, f"the job ended: {self.outcome}", now_ms)
        self._part(job)
        job.outbox.put(JobEnded(self.outcome, self.reason))
        return None

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Decision | None:
        self._part(job)
        return None

    def on_rescale(self, job: Job, now_ms: int) -> Decision | None:
        self._part(job)
        return None

    def _part(self, job: Job) -> None:
        """Links of a replaced process are closed: slots then look for the leader."""
        for slot in (*job.slots.connected, *job.slots.standbys, *job.slots.successors):
            if self.outcome != "replaced":
                job.outbox.send(slot, Shutdown(self.outcome, self.reason))
            job.outbox.close(slot)

    def on_foreign(self, job: Job, foreign: object, now_ms: int) -> Decision | None:
        return None

    def on_stop(self, job: Job, now_ms: int) -> Decision | None:
        return None

    def on_refused(self, job: Job, error: str, now_ms: int) -> Decision | None:
        return None


class Finishing(Phase):
    name = "finishing"

    def __init__(
        self,
        outcome: Literal["finished", "cancelled"],
        reason: str,
        *,
        discard: Literal["keep", "discard"],
        visible: int = 0,
    ) -> None:
        self._outcome: Literal["finished", "cancelled"] = outcome
        self.reason = reason
        self._discarded = discard == "discard"
        self._visible = visible
        self._appended = False

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        if not job.log.in_flight:
            self._append(job, now_ms)
        return None

    def on_appended(self, job: Job, appended: Appended, now_ms: int) -> Decision | None:
        appended_late(job, appended, now_ms)
        if not isinstance(appended.entry.record, Finish):
            self._append(job, now_ms)
            return None
        self._appended = True
        if self._discarded:
            job.outbox.delete_all(appended.permit)
            return None
        return EndJob(self._outcome, self.reason)

    def on_foreign(self, job: Job, foreign: Foreign, now_ms: int) -> Decision | None:
        if self._appended:
            return EndJob(self._outcome, self.reason)
        return FencedBy(foreign.entry.record)

    def on_deleted_all(self, job: Job, error: str, now_ms: int) -> Decision | None:
        job.record.error = error or job.record.error
        return EndJob(self._outcome, self.reason)

    def on_stop(self, job: Job, now_ms: int) -> Decision | None:
        """A second request during an outage ends without FINISH; a later run continues the job."""
        return EndJob("cancelled", self.reason) if isinstance(job.stop, StopNow) else None

    def _append(self, job: Job, now_ms: int) -> None:
        records = job.records
        job.append(records.finish(job.log, self._outcome, now_ms, discarded=self._discarded, visible=self._visible))


class Failing(Phase):
    """The append of FINISH decides: errors of a fenced process may be false, such as missing files of a
    checkpoint that the successor dropped.
    """

    name = "failing"

    def __init__(self, error: str) -> None:
        self.reason = error

    def enter(self, job: Job, now_ms: int) -> Decision | None:
        job.record.error = self.reason
        if not job.log.in_flight:
            self._append(job, now_ms)
        return None

    def on_appended(self, job: Job, appended: Appended, now_ms: int) -> Decision | None:
        appended_late(job, appended, now_ms)
        if isinstance(appended.entry.record, Finish):
            return EndJob("failed", self.reason)
        self._append(job, now_ms)
        return None

    def on_foreign(self, job: Job, foreign: Foreign, now_ms: int) -> Decision | None:
        """Before leading, accepts a record that the predecessor had in flight."""
        record = foreign.entry.record
        overtaken = foreign.entry.position != job.log.next_position
        if job.leads or overtaken or isinstance(record, Fence | Lead | Finish):
            return FencedBy(record)
        job.log.accept(foreign)
        self._append(job, now_ms)
        return None

    def _append(self, job: Job, now_ms: int) -> None:
        """Only the leader appends records other than FENCE and LEAD."""
        records, log = job.records, job.log
        job.append(
            records.finish(log, "failed", now_ms, reason=self.reason) if job.leads else records.lead(log, now_ms)
        )

    def on_stop(self, job: Job, now_ms: int) -> Decision | None:
        return EndJob("failed", self.reason) if isinstance(job.stop, StopNow) else None
