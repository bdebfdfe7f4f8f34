"""Public status of a job: a frozen snapshot, JSON through msgspec.

Times named `_ms` are wall-clock milliseconds, `duration_ms` a duration.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Literal

import msgspec

from barrier_runtime.coordinator.checkpoints.slowness import SlowCommit, SlowUpload


class SlotStatus(msgspec.Struct, frozen=True):
    slot: int
    uuid: str
    pid: int
    host: str
    task_attempt: int
    state: str
    heartbeat_age_ms: int
    metrics: dict[str, float]
    differs: str = ""  # how release or build differ from the coordinator's


class AbsentSlot(msgspec.Struct, frozen=True):
    """A missing slot. `ending`: the task that still occupies a core there after a request to end."""

    slot: int
    host: str  # of the last process; "": unknown
    since_ms: int
    ending: int | None = None
    carrier: Literal["spark", "processes"] = "spark"  # as in `JobSpec`


class SilentLink(msgspec.Struct, frozen=True):
    """`slot` does not hear `peer`, although both reach the coordinator."""

    slot: int
    host: str
    peer: int
    peer_host: str
    silent_ms: int
    failures: int  # earlier failures of this pair of processes


class KillRequest(msgspec.Struct, frozen=True):
    """Request to the driver to end this Spark task, repeated until a replacement has registered.

    `avoid`: host unsuitable for the replacement; "": none.
    """

    slot: int
    task_attempt: int
    uuid: str
    avoid: str = ""


class SubtaskPhases(msgspec.Struct, frozen=True, array_like=True):
    """A subtask's part of a checkpoint, in milliseconds. An array in JSON, because a history keeps many.

    Append new fields, with a default. "Since the last snapshot" means of the same subtask.
    """

    chain: int
    subtask: int  # number of the slot
    ack_ms: int  # trigger -> ack at the coordinator
    start_delay_ms: float = 0.0  # trigger -> first barrier; of a source: until the trigger is taken
    alignment_ms: float = 0.0  # first barrier -> last barrier
    sync_ms: float = 0.0  # on the slot's loop
    async_ms: float = 0.0  # all after that, until the ack was sent
    precommit_ms: float = 0.0  # of `async_ms`: an operator's longest blocking work (a pre-commit)
    upload_ms: float = 0.0  # of `async_ms`: an operator's longest write of state
    slowest: str = ""  # operator of the longer of both
    new_bytes: int = 0  # uploaded, with rows in flight
    full_bytes: int = 0  # of all state
    in_flight_bytes: int = 0
    rows: int = 0  # taken since the last snapshot
    busy_ms: float = 0.0  # work on rows, since the last snapshot
    blocked_ms: float = 0.0  # receivers gave no credit, since the last snapshot
    held_ms: float = 0.0  # an operator of the chain waited for a server, since the last snapshot
    step_ms: float = 0.0  # the slot's longest step, since the last snapshot
    step_chain: int = -1  # chain of that step
    starved_ms: float = 0.0  # the slot's loop was ready and got no processor, since the last snapshot
    step_reading: bool = False  # mostly in a reader of this package


class SlotDuring(msgspec.Struct, frozen=True, array_like=True):
    """Observations of a slot while a checkpoint was pending, in milliseconds."""

    slot: int
    silent_ms: int  # longest time without a message
    stalled_ms: float  # longest delay of a heartbeat in the slot
    late_ms: float = 0.0  # longest transfer of a heartbeat, above the shortest ever


class StoreUseStatus(msgspec.Struct, frozen=True, array_like=True):
    """Billed requests (S3) of slots and coordinator to the store since the last checkpoint."""

    writes: int  # PUT, COPY, POST, LIST
    reads: int  # GET, HEAD
    sent_bytes: int
    received_bytes: int


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that ended, or the last complete checkpoint."""

    checkpoint: int
    token: int
    outcome: str  # a value of `checkpoint.CheckpointPhase`
    reason: str = ""
    triggered_ms: int
    duration_ms: int  # trigger to end
    ack_duration_ms: int | None = None  # trigger to the last ack
    persist_duration_ms: int | None = None  # manifest
    decide_duration_ms: int | None = None  # log record
    commit_duration_ms: int | None = None  # decision to the last sink's commit; None: commits are open
    start_delay_ms: float = 0.0  # of the worst subtask, as the next three
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    new_bytes: int = 0  # uploaded
    full_bytes: int = 0  # all state
    in_flight_bytes: int = 0  # rows between subtasks; only of an unaligned checkpoint
    parts: int = 0  # subtask snapshots
    subtasks: tuple[SubtaskPhases, ...] = ()  # slowest first; see `statistics.SUBTASKS`
    phases: bytes = b""  # all subtasks' durations, see `subtask_durations`; empty: older than the bounds
    missing: tuple[str, ...] = ()  # the first 64 subtasks ("chain/index") without an ack
    slots: tuple[SlotDuring, ...] = ()  # slots that were silent or stalled for long
    state_bytes: dict[str, int] = {}  # operator -> state in all slots
    chain_rows: dict[str, int] = {}  # number of a chain -> rows since the previous checkpoint
    median_ack_ms: int | None = None  # of all subtasks
    store: StoreUseStatus | None = None  # None: unknown
    slowest_commit: str = ""  # "<operator>/<subtask>" with the last commit


DURATION_BOUNDS_MS = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)


class DurationCounts(msgspec.Struct, frozen=True):
    """Histogram of all completed checkpoints' durations.

    Counts per bucket of `DURATION_BOUNDS_MS` (not cumulative), then those above; () before the first checkpoint.
    """

    counts: tuple[int, ...] = ()
    sum_ms: int = 0

    def with_one(self, duration_ms: int) -> "DurationCounts":
        counts = list(self.counts or (0,) * (len(DURATION_BOUNDS_MS) + 1))
        counts[bisect_left(DURATION_BOUNDS_MS, duration_ms)] += 1
        return DurationCounts(tuple(counts), self.sum_ms + duration_ms)


class CheckpointsStatus(msgspec.Struct, frozen=True, kw_only=True):
    triggered: int = 0
    completed: int = 0
    failed: int = 0
    in_progress: tuple[int, ...] = ()
    waiting_for: tuple[str, ...] = ()  # subtasks ("chain/index") that the oldest pending checkpoint lacks
    ignored: dict[str, int] = {}  # acks and declines without effect, by reason
    last_completed: CheckpointStatus | None = None
    history: tuple[CheckpointStatus, ...] = ()  # the last 100, oldest first
    durations: DurationCounts = DurationCounts()
    slow_uploads: tuple[SlowUpload, ...] = ()  # operators with uploads longer than the interval; never stored


class RecoveryStatus(msgspec.Struct, frozen=True):
    token: int
    reason: str
    started_ms: int  # failure noticed
    slots_ready_ms: int | None  # all slots registered
    running_ms: int | None
    duration_ms: int | None


class TakeoverStatus(msgspec.Struct, frozen=True):
    """Another coordinator process began to lead, and the slots continued.

    `ended`: end of the previous process, if its starter reported that, as "process 71 died of SIGKILL"; `away_ms`: time
    since.
    """

    token: int
    leader: str
    at_ms: int
    ended: str = ""
    away_ms: int | None = None


class FailureStatus(msgspec.Struct, frozen=True):
    """A subtask (or a slot, then `subtask` is "") could not continue."""

    token: int
    at_ms: int
    slot: int
    subtask: str  # "chain/index"
    operator: str
    error: str  # traceback of the user's code, error, place (rows), remedy; shortened
    retryable: bool


class LatencyStatus(msgspec.Struct, frozen=True):
    """Percentiles of a latency in milliseconds."""

    p50: float
    p99: float
    max: float
    count: int
    p999: float = 0.0
    buckets: tuple[int, ...] = ()  # rows up to each of `LATENCY_BOUNDS_MS`, cumulative


LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)


class LatencyPoint(msgspec.Struct, frozen=True, array_like=True):
    """Latencies of the minute that ended at `at_ms`; milliseconds."""

    at_ms: int
    p50: float
    p99: float
    p999: float
    max: float
    count: int


class ChainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An operator chain: a node of the job's graph, with the work of subtasks in the last 10 s.

    Shares are of a slot's time, 0 to 1, the mean over slots; None: unknown. A slot's chains share a loop: their busy
    shares add up to at most 1. Other shares overlap: a backpressured chain may be busy in between.
    """

    chain: int
    operators: tuple[str, ...]
    inputs: tuple[int, ...] = ()  # chains that send rows here
    sinks: tuple[str, ...] = ()
    is_source: bool = False
    busy: float | None = None
    backpressured: float | None = None  # receivers give no credit
    held: float | None = None  # an operator waits for a server
    idle: float | None = None  # none of these
    busiest: float | None = None  # the highest busy share of a slot
    busiest_slot: int = -1
    rows_in_per_s: float | None = None  # of a source: rows read; all slots together
    rows_out_per_s: float | None = None
    rows_in: int = 0  # since the generation began
    rows_out: int = 0
    busiest_rows: float | None = None  # the largest share of the rows in a slot, 0 to 1
    starved: float | None = None  # the slots' loops were ready and got no processor
    backlog: int | None = None  # of a source: unread rows; None: unknown
    caught_up_in_s: float | None = None  # at the present rate; None: unknown or rising


class SourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A source's event time. `split`: the slowest unfinished split, which holds the watermark back."""

    source: str
    watermark_ms: int | None = None
    lag_ms: int | None = None  # the coordinator's clock, less the watermark
    split: str = ""
    split_slot: int = -1
    idle_slots: tuple[int, ...] = ()  # slots without splits, or with splits empty for the idle timeout
    idle_splits: tuple[str, ...] = ()  # some splits empty for the idle timeout
    idle_count: int = 0  # number of these splits

    @property
    def idle(self) -> str:
        """Idle splits and slots, as text; empty if none."""
        more = self.idle_count - len(self.idle_splits)
        splits = ", ".join(self.idle_splits) + (f" and {more} more" if more > 0 else "")
        slots = f"all of slot {', '.join(map(str, self.idle_slots))}" if self.idle_slots else ""
        return "; ".join(filter(None, (splits, slots)))


class SavepointStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    url: str
    state: str  # a value of `checkpoints.savepoints.SavepointState`
    checkpoint: int | None  # the copied checkpoint, if known
    asked_ms: int
    ended_ms: int | None = None
    bytes: int = 0  # of all files
    stops: bool = False  # the job stops with this savepoint
    error: str = ""


class RescaleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the job's parallelism or program while it runs."""

    id: str
    before: int
    parallelism: int
    state: str  # a value of `job.rescaling.RescaleState`
    asked_ms: int
    ended_ms: int | None = None
    checkpoint: int | None = None  # the checkpoint to move with
    paused_ms: int | None = None  # when sources had to stop
    decided_ms: int | None = None  # checkpoint decided
    moved_ms: int | None = None  # all rows visible: the new slots restore
    pause_ms: int | None = None  # `paused_ms` until the new slots ran; None: failed, or nothing to do
    error: str = ""
    kind: Literal["rescale", "replace"] = "rescale"

    @property
    def what(self) -> str:
        return "replace" if self.kind == "replace" else f"rescale {self.before} → {self.parallelism} slots"


class StandbysWanted(msgspec.Struct, frozen=True):
    """Request to the driver, once per `request`, to start these slots as standbys."""

    request: str
    first: int
    last: int
    program: str = ""  # as in `JobSpec`


class ProgramWanted(msgspec.Struct, frozen=True):
    """Request to the driver to load `flow` ("app.py:flow") anew, as `id`, once per `request`."""

    request: str
    id: str
    flow: str


class CommitTrouble(msgspec.Struct, frozen=True):
    sink: str  # "<operator>/<subtask>"
    checkpoint: int
    attempts: int  # at least: a predecessor's as last stored
    error: str
    since_ms: int = 0  # first failed attempt; 0: unknown


class CommitsStatus(msgspec.Struct, frozen=True):
    through: dict[str, int]  # "<operator>/<subtask>" -> visible up to this checkpoint
    troubles: tuple[CommitTrouble, ...]
    slow: tuple[SlowCommit, ...] = ()  # sinks with late commits; never stored


class Room(msgspec.Struct, frozen=True):
    """Free cores, as reported by the program that runs a job's slots.

    `cores`: of the cluster, 0 if unknown. `held_by`: cores that others occupy, by name. `starting`: slots with a core,
    registered or not, while none fails. `failing`: newest error of a process for a missing slot, with host and remedy.
    """

    cores: int = 0
    cores_per_slot: int = 1
    held_by: dict[str, int] = {}
    starting: int = 0
    failing: str = ""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    run_id: str
    submitter: str
    phase: str  # loading, resuming, fencing, waiting (for all slots), restoring, running, finishing, or the outcome
    outcome: str | None  # finished, failed, cancelled, fenced, replaced; None while the job lives
    condition: str = ""  # a value of `health.State`
    condition_reason: str = ""  # names the object, sink or subtasks
    condition_since_ms: int = 0
    reason: str  # of the present phase
    error: str | None
    fenced_by: str | None
    token: int | None
    generations: int  # by all coordinators of the job
    leader: str
    parallelism: int
    max_parallelism: int
    slots: tuple[SlotStatus, ...]
    missing_slots: tuple[int, ...]
    absences: tuple[AbsentSlot, ...] = ()  # missing slots, once the job has run
    full_parallelism: int = 0  # slots of the job at full width; 0: of an older release
    narrow_because: str = ""  # slots that stayed away
    silent_links: tuple[SilentLink, ...] = ()  # slots that do not hear each other
    room: Room | None = None  # while slots are missing, if reported
    absent_slots: tuple[int, ...] = ()  # not registered within the resource wait timeout: the job failed
    checkpoints: CheckpointsStatus
    recoveries: tuple[RecoveryStatus, ...]
    watermark_ms: int | None  # the slots' minimum
    records: int  # read by sources
    latency: dict[str, LatencyStatus]  # "<sink>:processed", "<sink>:visible"; since the slots' processes began
    latency_last_minute: dict[str, LatencyStatus] = {}
    commits: CommitsStatus
    kill: tuple[KillRequest, ...]
    options: dict[str, str | float | bool | None]
    restored_checkpoint: int
    savepoints: tuple[SavepointStatus, ...] = ()  # the last 50, oldest first
    storage_trouble: str = ""  # why requests to the object store are retried
    at_ms: int = 0  # of this status; 0: the run has ended
    chains: tuple[ChainStatus, ...] = ()  # in topological order
    sources: tuple[SourceStatus, ...] = ()
    latency_hour: dict[str, tuple[LatencyPoint, ...]] = {}  # a point per minute, oldest first
    failures: tuple[FailureStatus, ...] = ()  # the last 20, oldest first
    takeovers: tuple[TakeoverStatus, ...] = ()  # the last 100, oldest first
    taken_over: int = 0
    rescales: tuple[RescaleStatus, ...] = ()  # the last 50, oldest first
    standbys: StandbysWanted | None = None
    program: str = ""  # as in `JobSpec`
    program_wanted: ProgramWanted | None = None


def without_subtasks(status: JobStatus) -> JobStatus:
    checkpoints = status.checkpoints
    history = tuple(msgspec.structs.replace(each, subtasks=(), phases=b"") for each in checkpoints.history)
    return msgspec.structs.replace(status, checkpoints=msgspec.structs.replace(checkpoints, history=history))


_HOLDERS = 100
_NAME = 100
_ERROR = 1_000


def bounded(room: Room) -> Room:
    """Limits texts from unknown peers: short, without control characters for a terminal."""
    largest = sorted(room.held_by.items(), key=lambda each: -each[1])[:_HOLDERS]
    held_by = {_printable(name): cores for name, cores in largest}
    return msgspec.structs.replace(room, held_by=held_by, failing=_printable(room.failing, _ERROR))


def with_holders(status: JobStatus, jobs: Mapping[str, int]) -> JobStatus:
    """Adds cores of this daemon's `jobs` while slots are missing; the program's report wins."""
    if not status.missing_slots or status.outcome is not None:
        return status
    room = status.room or Room()
    others = {name: slots for name, slots in jobs.items() if slots and name != status.job}
    return msgspec.structs.replace(status, room=msgspec.structs.replace(room, held_by={**others, **room.held_by}))


def _printable(text: str, longest: int = _NAME) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:longest])
