"""The end of a job: the last record, the farewell to the slots, and the ways to get here.

`Finishing` appends FINISH (and drops the checkpoints when the user asked for that); `Ended` is final: every slot that
still comes is told to leave. A coordinator that was replaced by another one of the *same* run leaves the slots alone,
they belong to the other.
"""

from typing import Literal

from coordinator.decision_log import Foreign, Landed
from coordinator.effects import DeleteAll, JobEnded, Outcome
from coordinator.job import Job
from coordinator.log_records import Fence, Finish, Lead, Record
from coordinator.messages import Shutdown
from coordinator.phase import Phase
from coordinator.slots import Arrival


class Ended(Phase):
    def __init__(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        self.name = outcome
        self.reason = reason

    def enter(self, job: Job, now_ms: int) -> Phase | None:
        job.leads = False  # nothing may be decided or deleted any more (C16, F9)
        if job.pending is not None:
            for checkpoint in job.pending.abort_all(now_ms):
                job.record.checkpoint_ended(checkpoint, f"the job ended: {self.outcome}", now_ms)
        for slot in job.slots.connected:
            if self.outcome != "replaced":
                job.send(slot, Shutdown(self.outcome, self.reason))
            job.close(slot)
        job.emit(JobEnded(self.outcome, self.reason))
        return None

    def on_slot(self, job: Job, arrival: Arrival, now_ms: int) -> Phase | None:
        for slot in job.slots.connected:
            if self.outcome != "replaced":
                job.send(slot, Shutdown(self.outcome, self.reason))
            job.close(slot)
        return None

    def on_foreign(self, job: Job, foreign: object, now_ms: int) -> Phase | None:
        return None

    def on_stop(self, job: Job, now_ms: int) -> Phase | None:
        return None

    def on_refused(self, job: Job, error: str, now_ms: int) -> Phase | None:
        return None


class Finishing(Phase):
    """Append FINISH; then drop the checkpoints if that is wanted; then end."""

    name = "finishing"

    def __init__(self, outcome: Literal["finished", "cancelled"], reason: str, *, discard: Literal["keep", "discard"]):
        self._outcome: Literal["finished", "cancelled"] = outcome
        self.reason = reason
        self._discarded = discard == "discard"
        self._landed = False

    def enter(self, job: Job, now_ms: int) -> Phase | None:
        if not job.log.in_flight:
            self._append(job, now_ms)
        return None

    def on_landed(self, job: Job, landed: Landed, now_ms: int) -> Phase | None:
        job.permit = landed.permit
        if not isinstance(landed.entry.record, Finish):  # an earlier decision that was still under way
            self._append(job, now_ms)
            return None
        self._landed = True
        if self._discarded:
            job.emit(DeleteAll(landed.permit))
            return None
        return Ended(self._outcome, self.reason)

    def on_foreign(self, job: Job, foreign: Foreign, now_ms: int) -> Phase | None:
        """Behind our FINISH it is the next run, which is nobody's fault."""
        if self._landed:
            return Ended(self._outcome, self.reason)
        return fenced(job, foreign.entry.record)

    def on_deleted_all(self, job: Job, error: str, now_ms: int) -> Phase | None:
        job.error = error or job.error
        return Ended(self._outcome, self.reason)

    def on_stop(self, job: Job, now_ms: int) -> Phase | None:
        """Asked again while the store does not answer: leave without the record, a later run finds the job as it is."""
        return Ended("cancelled", self.reason) if job.stop == "now" else None

    def _append(self, job: Job, now_ms: int) -> None:
        job.append(job.finish_record(self._outcome, self._discarded, now_ms))


class Failing(Phase):
    """What happened can't be cured, if this process still leads: one that was fenced sees troubles that are none, such
    as files of a checkpoint that its successor has dropped. So the log is asked first: our FINISH lands, or not."""

    name = "failing"

    def __init__(self, error: str) -> None:
        self.reason = error

    def enter(self, job: Job, now_ms: int) -> Phase | None:
        job.error = self.reason
        if not job.log.in_flight:
            self._append(job, now_ms)
        return None

    def on_landed(self, job: Job, landed: Landed, now_ms: int) -> Phase | None:
        job.permit = landed.permit
        if isinstance(landed.entry.record, Finish):
            return failed(job, self.reason)
        if isinstance(landed.entry.record, Lead):
            job.leading(landed)
        self._append(job, now_ms)
        return None

    def on_foreign(self, job: Job, foreign: Foreign, now_ms: int) -> Phase | None:
        """Who does not lead yet may only have lost to what its predecessor still had under way."""
        record = foreign.entry.record
        if job.leads or isinstance(record, Fence | Lead | Finish):
            return fenced(job, record)
        job.log.accept(foreign)
        self._append(job, now_ms)
        return None

    def _append(self, job: Job, now_ms: int) -> None:
        """Only who leads appends anything else than FENCE and LEAD."""
        record = job.finish_record("failed", False, now_ms, self.reason) if job.leads else job.lead_record(now_ms)
        job.append(record)

    def on_stop(self, job: Job, now_ms: int) -> Phase | None:
        return failed(job, self.reason) if job.stop == "now" else None


def failed(job: Job, error: str) -> Phase:
    """The job can't go on, and only a person can change that."""
    job.error = error
    return Ended("failed", error)


def cancel(job: Job) -> Phase:
    """The user wants the job to end. Checkpoints are dropped only by who leads, and only when asked for."""
    reason = f"job {job.spec.job} was stopped by its user"
    if job.spec.checkpoints.on_cancel == "delete" and job.leads:
        return Finishing("cancelled", reason, discard="discard")
    return Ended("cancelled", reason)


def fenced(job: Job, record: Record) -> Phase:
    """`record` stands where ours should: another coordinator owns the job."""
    if isinstance(record, Fence) and record.spec.run_id != job.spec.run_id:
        return fenced_by_run(job, record)
    who = record.leader if isinstance(record, Lead) else record.put_id.rpartition("-")[0]
    return Ended(
        "replaced",
        f"coordinator {who} ({record.writer}) leads job {job.spec.job} now with generation {record.token}; this one "
        "stops and leaves the slots to it",
    )


def fenced_by_run(job: Job, record: Fence) -> Phase:
    reason = (
        f"job {job.spec.job} was taken over by generation {record.token} of {record.spec.submitter}; this run stops, "
        "nothing is lost: stop the other run before starting the job again"
    )
    job.fenced_by = f"generation {record.token} of {record.spec.submitter}"
    job.error = reason
    return Ended("fenced", reason)
