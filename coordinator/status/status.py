"""What a job tells the outside: one frozen snapshot of everything worth seeing. Plain data, JSON through msgspec.

Times called `_ms` without further words are wall-clock milliseconds; durations end in `duration_ms`.

Who holds the cores that slots wait for: what the program has told, and what the daemon knows itself. Pure.
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


class KillRequest(msgspec.Struct, frozen=True):
    """The driver is asked to end this Spark task; repeated until a replacement has registered."""

    slot: int
    task_attempt: int
    uuid: str


class SubtaskPhases(msgspec.Struct, frozen=True, array_like=True):
    """One subtask's part of a checkpoint. An array in JSON, in this order, because a history keeps many of them. Later
    fields come last, with a default. Milliseconds; "since the last snapshot" is since the subtask's own last one."""

    chain: int
    subtask: int  # it runs in the slot of this number
    ack_ms: int  # trigger -> its ack reached the coordinator
    start_delay_ms: float = 0.0  # trigger -> first barrier; of a source: until it takes the trigger
    alignment_ms: float = 0.0  # first barrier -> last barrier
    sync_ms: float = 0.0  # on the slot's loop
    async_ms: float = 0.0  # all after that, until the ack was sent
    precommit_ms: float = 0.0  # of `async_ms`: the longest that an operator's own blocking work took (a pre-commit)
    upload_ms: float = 0.0  # of `async_ms`: the longest that writing one operator's state took
    slowest: str = ""  # the operator that one of these two, the longer, is of
    new_bytes: int = 0  # uploaded, with rows in flight
    full_bytes: int = 0  # its state
    in_flight_bytes: int = 0
    rows: int = 0  # taken since the last snapshot
    busy_ms: float = 0.0  # work on rows since the last snapshot
    blocked_ms: float = 0.0  # its receivers had no room, since the last snapshot
    held_ms: float = 0.0  # an operator of its own had no room (it waits for a server), since the last snapshot
    step_ms: float = 0.0  # the longest step of any subtask in this slot, since the last snapshot
    step_chain: int = -1  # whose step that was
    starved_ms: float = 0.0  # the slot's loop was ready to run and got no processor, since the last snapshot


class SlotDuring(msgspec.Struct, frozen=True, array_like=True):
    """What the coordinator saw of a slot while a checkpoint was under way. Milliseconds."""

    slot: int
    silent_ms: int  # the longest time in which nothing was heard of it
    stalled_ms: float  # the longest time by which a heartbeat was late in the slot itself
    late_ms: float = 0.0  # the longest that a heartbeat was under way, above the shortest ever


class StoreUseStatus(msgspec.Struct, frozen=True, array_like=True):
    """Requests of slots and coordinator to the job's object store since the checkpoint before, as S3 bills them."""

    writes: int  # PUT, COPY, POST, LIST
    reads: int  # GET, HEAD
    sent_bytes: int
    received_bytes: int


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint that ended, or the last completed one."""

    checkpoint: int
    token: int
    outcome: str  # a value of `checkpoint.Phase`
    reason: str = ""
    triggered_ms: int
    duration_ms: int  # trigger to end
    ack_duration_ms: int | None = None  # trigger to the last ack
    persist_duration_ms: int | None = None  # manifest
    decide_duration_ms: int | None = None  # log record
    commit_duration_ms: int | None = None  # decision to the last sink's commit; None while commits are open
    start_delay_ms: float = 0.0  # the worst subtask's, as are the next three
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    new_bytes: int = 0  # uploaded
    full_bytes: int = 0  # all state
    in_flight_bytes: int = 0  # rows on their way between subtasks; only of an unaligned checkpoint
    parts: int = 0  # subtask snapshots
    subtasks: tuple[SubtaskPhases, ...] = ()  # the slowest to acknowledge, slowest first; see `statistics.SUBTASKS`
    phases: bytes = b""  # times of all subtasks, packed by `status.phases`; empty: older than its bounds
    missing: tuple[str, ...] = ()  # subtasks ("chain/index") without an ack when it ended; the first 64
    slots: tuple[SlotDuring, ...] = ()  # those that were silent or stood still for long
    state_bytes: dict[str, int] = {}  # operator -> its state in all slots
    chain_rows: dict[str, int] = {}  # number of a chain -> rows that all its subtasks took since the checkpoint before
    median_ack_ms: int | None = None  # of all subtasks
    store: StoreUseStatus | None = None  # None: not known
    slowest_commit: str = ""  # the sink ("<operator>/<subtask>") whose commit came last


DURATION_BOUNDS_MS = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)


class DurationCounts(msgspec.Struct, frozen=True):
    """Of all checkpoints that completed: how many took up to each of `DURATION_BOUNDS_MS`, but longer than the bound
    before, and last how many took longer than all; () before the first one."""

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
    waiting_for: tuple[str, ...] = ()  # subtasks ("chain/index") the oldest one in progress waits for
    ignored: dict[str, int] = {}  # acks and declines without effect, by reason
    last_completed: CheckpointStatus | None = None
    history: tuple[CheckpointStatus, ...] = ()  # the last 100, oldest first
    durations: DurationCounts = DurationCounts()
    slow_uploads: tuple[SlowUpload, ...] = ()  # operators whose uploads took longer than the interval; never stored


class RecoveryStatus(msgspec.Struct, frozen=True):
    token: int
    reason: str
    started_ms: int  # the trouble was noticed
    slots_ready_ms: int | None  # all slots registered
    running_ms: int | None
    duration_ms: int | None


class TakeoverStatus(msgspec.Struct, frozen=True):
    """Another coordinator process began to lead, and the slots went on. `ended`: how the one before did, where who
    started both has told it, as "process 71 died of SIGKILL"; `away_ms`: since then."""

    token: int
    leader: str
    at_ms: int
    ended: str = ""
    away_ms: int | None = None


class FailureStatus(msgspec.Struct, frozen=True):
    """A subtask (or a slot, then `subtask` is "") could not go on."""

    token: int
    at_ms: int
    slot: int
    subtask: str  # "chain/index"
    operator: str
    error: str  # the user's traceback first, if there is one, then what, where (which rows) and the remedy; shortened
    retryable: bool


class LatencyStatus(msgspec.Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p99: float
    max: float
    count: int
    p999: float = 0.0
    buckets: tuple[int, ...] = ()  # rows up to each of `LATENCY_BOUNDS_MS`, cumulative


LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)


class LatencyPoint(msgspec.Struct, frozen=True, array_like=True):
    """Of the minute that ended at `at_ms`; milliseconds."""

    at_ms: int
    p50: float
    p99: float
    p999: float
    max: float
    count: int


class ChainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One operator chain: a node of the job's graph, with what its subtasks did in the last 10 s.

    Shares are of one slot's time, 0 to 1, the mean over the slots; None: not known yet. Chains of a slot share its
    loop, so their busy shares add up to 1 at most. The shares do not exclude each other: a chain that waits for its
    receivers may be busy in between."""

    chain: int
    operators: tuple[str, ...]
    inputs: tuple[int, ...] = ()  # chains that send rows here
    sinks: tuple[str, ...] = ()
    is_source: bool = False
    busy: float | None = None
    backpressured: float | None = None  # its receivers have no room
    held: float | None = None  # an operator of its own has no room: it waits for a server
    idle: float | None = None  # none of these
    busiest: float | None = None  # the highest busy share of one slot
    busiest_slot: int = -1
    rows_in_per_s: float | None = None  # of a source: rows read; all slots together
    rows_out_per_s: float | None = None
    rows_in: int = 0  # since the generation began
    rows_out: int = 0
    busiest_rows: float | None = None  # the largest share of the rows that one slot got, 0 to 1
    starved: float | None = None  # its slots' loops were ready to run, and got no processor


class SourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A source's event time. `split` holds the watermark back: of all slots, the unfinished one that is least far."""

    source: str
    watermark_ms: int | None = None
    lag_ms: int | None = None  # the coordinator's clock, less the watermark
    split: str = ""
    split_slot: int = -1
    idle_slots: tuple[int, ...] = ()  # whose splits have had nothing for the idle timeout, or that have none
    idle_splits: tuple[str, ...] = ()  # some that have had nothing for the idle timeout; they hold nothing back
    idle_count: int = 0  # of all that have had nothing

    @property
    def idle(self) -> str:
        """For people; empty if nothing is idle."""
        more = self.idle_count - len(self.idle_splits)
        splits = ", ".join(self.idle_splits) + (f" and {more} more" if more > 0 else "")
        slots = f"all of slot {', '.join(map(str, self.idle_slots))}" if self.idle_slots else ""
        return "; ".join(filter(None, (splits, slots)))


class SavepointStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    url: str
    state: str  # a value of `checkpoints.savepoints.SavepointState`
    checkpoint: int | None  # that it is a copy of, when known
    asked_ms: int
    ended_ms: int | None = None
    bytes: int = 0  # of its files
    stops: bool = False  # the job stops with it
    error: str = ""


class RescaleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the job's parallelism or program while it runs."""

    id: str
    before: int  # slots
    parallelism: int  # slots afterwards
    state: str  # a value of `job.rescaling.RescaleState`
    asked_ms: int
    ended_ms: int | None = None
    checkpoint: int | None = None  # that moved
    paused_ms: int | None = None  # sources were told to stop
    decided_ms: int | None = None  # the checkpoint was decided
    moved_ms: int | None = None  # all of it was visible: the new slots restore it from now on
    pause_ms: int | None = None  # from there until the new slots ran; None: it failed, or there was nothing to do
    error: str = ""
    kind: Literal["rescale", "replace"] = "rescale"

    @property
    def what(self) -> str:
        """For people."""
        return "replace" if self.kind == "replace" else f"rescale {self.before} → {self.parallelism} slots"


class StandbysWanted(msgspec.Struct, frozen=True):
    """The driver is asked to start these slots, once for each `request`; they wait until the job needs them."""

    request: str
    first: int
    last: int
    program: str = ""  # as in `JobSpec`, that they are to run


class ProgramWanted(msgspec.Struct, frozen=True):
    """The driver is asked to load `flow` ("app.py:flow") anew and to describe it as `id`, once for each `request`."""

    request: str
    id: str
    flow: str


class CommitTrouble(msgspec.Struct, frozen=True):
    sink: str  # "<operator>/<subtask>"
    checkpoint: int
    attempts: int  # at least: of a predecessor's, as was stored last
    error: str
    since_ms: int = 0  # the first attempt failed; 0: not known (stored by an older version)


class CommitsStatus(msgspec.Struct, frozen=True):
    through: dict[str, int]  # "<operator>/<subtask>" -> everything up to this checkpoint is visible
    troubles: tuple[CommitTrouble, ...]
    slow: tuple[SlowCommit, ...] = ()  # those that have something to commit now; never stored


class Room(msgspec.Struct, frozen=True):
    """What the program that runs a job's slots knows of room for them. `cores`: of its cluster, 0 if unknown.
    `held_by`: cores that others hold, by the name of who holds them. `starting`: slots of the job that have their core,
    whether they have registered or not, while none of them fails."""

    cores: int = 0
    cores_per_slot: int = 1
    held_by: dict[str, int] = {}
    starting: int = 0


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    run_id: str
    submitter: str
    phase: str  # loading, resuming, fencing, waiting (for all slots), restoring, running, finishing, or how it ended
    outcome: str | None  # finished, failed, cancelled, fenced, replaced; None while it lives
    condition: str = ""  # a value of `progress.State`: is it making progress, and if not, what does it wait for?
    condition_reason: str = ""  # names the object, sink or subtasks
    condition_since_ms: int = 0
    reason: str  # of the present phase
    error: str | None
    fenced_by: str | None
    token: int | None
    generations: int  # begun, by all coordinators of the job
    leader: str
    parallelism: int
    max_parallelism: int
    slots: tuple[SlotStatus, ...]
    missing_slots: tuple[int, ...]
    room: Room | None = None  # while slots are missing, if the program has told it
    absent_slots: tuple[int, ...] = ()  # did not come within the resource wait timeout, and the job failed for that
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
    storage_trouble: str = ""  # what the object store is retried for
    at_ms: int = 0  # when the coordinator told this; 0: of a run that has ended
    chains: tuple[ChainStatus, ...] = ()  # the graph, in topological order
    sources: tuple[SourceStatus, ...] = ()
    latency_hour: dict[str, tuple[LatencyPoint, ...]] = {}  # as `latency`, a point per minute, oldest first
    failures: tuple[FailureStatus, ...] = ()  # the last 20, oldest first
    takeovers: tuple[TakeoverStatus, ...] = ()  # the last 100, oldest first
    taken_over: int = 0  # times
    rescales: tuple[RescaleStatus, ...] = ()  # the last 50, oldest first
    standbys: StandbysWanted | None = None
    program: str = ""  # as in `JobSpec`, that the job runs
    program_wanted: ProgramWanted | None = None


def without_subtasks(status: JobStatus) -> JobStatus:
    """`status` with past checkpoints as a whole, without those of their subtasks."""
    checkpoints = status.checkpoints
    history = tuple(msgspec.structs.replace(each, subtasks=(), phases=b"") for each in checkpoints.history)
    return msgspec.structs.replace(status, checkpoints=msgspec.structs.replace(checkpoints, history=history))


_HOLDERS = 100  # that are kept
_NAME = 100  # characters of a name


def bounded(told: Room) -> Room:
    """Names come from unknown peers: short, and nothing in them that a terminal would act on."""
    largest = sorted(told.held_by.items(), key=lambda each: -each[1])[:_HOLDERS]
    return msgspec.structs.replace(told, held_by={_printable(name): cores for name, cores in largest})


def with_holders(status: JobStatus, jobs: Mapping[str, int]) -> JobStatus:
    """While slots are missing: `jobs` of this daemon hold so many cores, too, unless the program knows better."""
    if not status.missing_slots or status.outcome is not None:
        return status
    room = status.room or Room()
    others = {name: slots for name, slots in jobs.items() if slots and name != status.job}
    return msgspec.structs.replace(status, room=msgspec.structs.replace(room, held_by={**others, **room.held_by}))


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name[:_NAME])
