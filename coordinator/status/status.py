"""Public status of a job: frozen, JSON through msgspec. `_ms`: a wall-clock time, or a duration."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Literal

import msgspec

from barrier_runtime.coordinator.checkpoints.slowness import SlowCommit, SlowUpload
from barrier_runtime.coordinator.status.generation_status import RecoveryStatus as RecoveryStatus
from barrier_runtime.coordinator.wire.preflight import Preflight
from barrier_runtime.state.texts import counted


class SlotStatus(msgspec.Struct, frozen=True):
    slot: int
    uuid: str
    pid: int
    host: str
    task_attempt: int
    state: str
    heartbeat_age_ms: int
    metrics: dict[str, float]
    differs: str = ""  # release or build, if other than the coordinator's
    started_as: int = -1  # number for the driver, if other than `slot`


class AbsentSlot(msgspec.Struct, frozen=True):
    slot: int
    host: str  # of the last process; "": unknown
    since_ms: int
    ending: int | None = None  # task that still occupies a core
    carrier: Literal["spark", "processes"] = "spark"
    started_as: int = -1  # number for the driver


class SparesStatus(msgspec.Struct, frozen=True):
    wanted: int = 0
    ready: int = 0
    gone: tuple[int, ...] = ()  # numbers for the driver of slots and spares that are not connected


class SilentLink(msgspec.Struct, frozen=True):
    slot: int
    host: str
    peer: int
    peer_host: str
    silent_ms: int
    failures: int  # of this pair of processes


class KillRequest(msgspec.Struct, frozen=True):
    """The driver ends this Spark task; repeated until a replacement registers. `avoid`: not for the replacement."""

    slot: int
    task_attempt: int
    uuid: str
    avoid: str = ""


class SubtaskPhases(msgspec.Struct, frozen=True, array_like=True):
    """A subtask's part of a checkpoint, in milliseconds. An array in JSON.
    Append new fields, with a default. Fields from `rows` on count since the subtask's last snapshot.
    """

    chain: int
    subtask: int  # number of the slot
    ack_ms: int  # trigger -> ack at the coordinator
    start_delay_ms: float = 0.0  # trigger -> first barrier; of a source: until the trigger is taken
    alignment_ms: float = 0.0  # first barrier -> last barrier
    sync_ms: float = 0.0  # on the slot's loop
    async_ms: float = 0.0  # after that, until the ack was sent
    precommit_ms: float = 0.0  # of `async_ms`: longest blocking work of an operator
    upload_ms: float = 0.0  # of `async_ms`: longest state write
    slowest: str = ""  # operator with the longer of both
    new_bytes: int = 0  # with rows in flight
    full_bytes: int = 0
    in_flight_bytes: int = 0
    rows: int = 0
    busy_ms: float = 0.0
    blocked_ms: float = 0.0  # receivers gave no credit
    held_ms: float = 0.0  # an operator of the chain waited for a server
    step_ms: float = 0.0  # the slot's longest step
    step_chain: int = -1
    starved_ms: float = 0.0  # the slot's loop was ready and got no processor
    step_reading: bool = False


class SlotDuring(msgspec.Struct, frozen=True, array_like=True):
    """Observations while a checkpoint was pending, in milliseconds."""

    slot: int
    silent_ms: int  # longest without a message
    stalled_ms: float  # longest delay of a heartbeat in the slot
    late_ms: float = 0.0  # longest transfer of a heartbeat, above the shortest


class StoreUseStatus(msgspec.Struct, frozen=True, array_like=True):
    """Billed requests (S3) of slots and coordinator since the last checkpoint."""

    writes: int  # PUT, COPY, POST, LIST
    reads: int  # GET, HEAD
    sent_bytes: int
    received_bytes: int


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint: int
    token: int
    outcome: str  # `checkpoint.CheckpointPhase`
    reason: str = ""
    triggered_ms: int
    duration_ms: int  # trigger to end
    ack_duration_ms: int | None = None  # trigger to the last ack
    persist_duration_ms: int | None = None
    decide_duration_ms: int | None = None
    commit_duration_ms: int | None = None  # decision to the last sink's commit; None: commits are open
    start_delay_ms: float = 0.0  # of the worst subtask; also the next three
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    new_bytes: int = 0
    full_bytes: int = 0
    in_flight_bytes: int = 0  # rows between subtasks
    parts: int = 0
    subtasks: tuple[SubtaskPhases, ...] = ()  # slowest first; see `statistics.SUBTASKS`
    phases: bytes = b""  # all subtasks, see `subtask_durations`
    missing: tuple[str, ...] = ()  # first 64 without an ack
    slots: tuple[SlotDuring, ...] = ()  # silent or stalled for long
    state_bytes: dict[str, int] = {}  # by operator
    chain_rows: dict[str, int] = {}  # chain -> rows since the previous checkpoint
    records: int | None = None  # read up to the checkpoint
    median_ack_ms: int | None = None
    store: StoreUseStatus | None = None
    slowest_commit: str = ""  # last to commit: "<operator>/<subtask>"


DURATION_BOUNDS_MS = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)


class DurationCounts(msgspec.Struct, frozen=True):
    """Durations of all completed checkpoints.

    Counts per bucket of `DURATION_BOUNDS_MS` (not cumulative), then those above; () before the first.
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
    waiting_for: tuple[str, ...] = ()  # missing from the oldest pending checkpoint
    ignored: dict[str, int] = {}  # acks and declines without effect, by reason
    last_completed: CheckpointStatus | None = None
    history: tuple[CheckpointStatus, ...] = ()  # last 100, oldest first
    durations: DurationCounts = DurationCounts()
    slow_uploads: tuple[SlowUpload, ...] = ()  # longer than the interval; never stored


class TakeoverStatus(msgspec.Struct, frozen=True):
    """Change of leader without a new generation. `ended`: the previous process's end, as "process 71 died of SIGKILL";
    `away_ms`: time since.
    """

    token: int
    leader: str
    at_ms: int
    ended: str = ""
    away_ms: int | None = None


class FailureStatus(msgspec.Struct, frozen=True):
    """Failure of a subtask, or of a slot (`subtask` "")."""

    token: int
    at_ms: int
    slot: int
    subtask: str  # "chain/index"
    operator: str
    error: str  # traceback, error, place (rows), remedy; shortened
    retryable: bool


class LatencyStatus(msgspec.Struct, frozen=True):
    p50: float
    p99: float
    max: float
    count: int
    p999: float = 0.0
    buckets: tuple[int, ...] = ()  # rows up to each of `LATENCY_BOUNDS_MS`, cumulative


LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)


class LatencyPoint(msgspec.Struct, frozen=True, array_like=True):
    at_ms: int  # end of the minute
    p50: float  # ms, like all below but `count`
    p99: float
    p999: float
    max: float
    count: int


class ChainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Work of the last 10 s. Shares are of a slot's time, 0 to 1, the mean over slots; None: unknown. A slot's chains
    share a loop: their busy shares add up to at most 1. Other shares overlap.
    """

    chain: int
    operators: tuple[str, ...]
    inputs: tuple[int, ...] = ()  # chains that send rows here
    sinks: tuple[str, ...] = ()
    is_source: bool = False
    busy: float | None = None
    backpressured: float | None = None  # receivers give no credit
    held: float | None = None  # waits for a server
    idle: float | None = None  # none of these
    busiest: float | None = None  # highest busy share of a slot
    busiest_slot: int = -1
    rows_in_per_s: float | None = None  # in all slots; of a source: rows read
    rows_out_per_s: float | None = None
    rows_in: int = 0  # since the generation began
    rows_out: int = 0
    busiest_rows: float | None = None  # largest share of the rows in a slot, 0 to 1
    starved: float | None = None  # ready loops got no processor
    backlog: int | None = None  # unread rows of a source
    caught_up_in_s: float | None = None  # None: unknown or rising


class SourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`split`: slowest unfinished split."""

    source: str
    watermark_ms: int | None = None
    lag_ms: int | None = None  # coordinator's clock less watermark
    split: str = ""
    split_slot: int = -1
    idle_slots: tuple[int, ...] = ()  # no splits, or all empty for the idle timeout
    idle_splits: tuple[str, ...] = ()  # some splits empty for the idle timeout
    idle_count: int = 0

    @property
    def idle(self) -> str:
        more = self.idle_count - len(self.idle_splits)
        splits = ", ".join(self.idle_splits) + (f" and {more} more" if more > 0 else "")
        slots = f"all of slot {', '.join(map(str, self.idle_slots))}" if self.idle_slots else ""
        return "; ".join(filter(None, (splits, slots)))


class SavepointStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    url: str
    state: str  # `checkpoints.savepoints.SavepointState`
    checkpoint: int | None
    asked_ms: int
    ended_ms: int | None = None
    bytes: int = 0
    stops: bool = False  # the job, with this savepoint
    error: str = ""


LEAVING = "leaving-"  # of ids of moves off a host


class RescaleStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    before: int
    parallelism: int
    state: str  # `job.rescaling.RescaleState`
    asked_ms: int
    ended_ms: int | None = None
    checkpoint: int | None = None  # to move with
    paused_ms: int | None = None  # when sources stopped
    decided_ms: int | None = None  # of `checkpoint`
    moved_ms: int | None = None  # all rows visible
    pause_ms: int | None = None  # from `paused_ms` until the new slots ran
    error: str = ""
    kind: Literal["rescale", "replace"] = "rescale"

    @property
    def leaves_host(self) -> bool:
        return self.kind == "rescale" and self.id.startswith(LEAVING)

    @property
    def what(self) -> str:
        if self.leaves_host:
            return "move off a host"
        return "replace" if self.kind == "replace" else f"rescale {self.before} → {counted(self.parallelism, 'slot')}"


class LeavingSlot(msgspec.Struct, frozen=True):
    """The driver starts a successor on another host, once per task attempt and notice, while `asked`."""

    slot: int
    host: str
    task_attempt: int
    since_ms: int
    state: Literal["asked", "registered", "moving", "ended"]  # ended: no successor came in time
    to_host: str = ""  # of the registered successor
    started_as: int = -1  # number for the driver, if other than `slot`


class StandbysWanted(msgspec.Struct, frozen=True):
    """The driver starts these standbys once per `request`."""

    request: str
    first: int
    last: int
    program: str = ""  # as in `JobSpec`


class ProgramWanted(msgspec.Struct, frozen=True):
    """The driver loads `flow` ("app.py:flow") anew, as `id`, once per `request`."""

    request: str
    id: str
    flow: str


class CommitTrouble(msgspec.Struct, frozen=True):
    sink: str  # "<operator>/<subtask>"
    checkpoint: int
    attempts: int  # at least
    error: str
    since_ms: int = 0


class CommitsStatus(msgspec.Struct, frozen=True):
    through: dict[str, int]  # "<operator>/<subtask>" -> visible up to this checkpoint
    troubles: tuple[CommitTrouble, ...]
    slow: tuple[SlowCommit, ...] = ()  # never stored


class Room(msgspec.Struct, frozen=True):
    """Free cores, reported by the program that runs the slots.

    `cores`: of the cluster, 0 if unknown. `held_by`: cores that others occupy, by name. `starting`: slots with a core,
    registered or not, while none fails. `failing`: newest error of a process for a missing slot.
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
    condition: str = ""  # `health.State`
    condition_reason: str = ""
    condition_since_ms: int = 0
    reason: str
    error: str | None
    fenced_by: str | None
    token: int | None
    generations: int
    leader: str
    parallelism: int
    max_parallelism: int
    slots: tuple[SlotStatus, ...]
    missing_slots: tuple[int, ...]
    carrier: Literal["spark", "processes"] = "spark"
    preflight: Preflight = Preflight(complete=False)
    absences: tuple[AbsentSlot, ...] = ()
    full_parallelism: int = 0  # slots at full width; 0: of an older release
    narrow_because: str = ""  # slots that stayed away
    silent_links: tuple[SilentLink, ...] = ()
    leaving: tuple[LeavingSlot, ...] = ()
    room: Room | None = None  # while slots are missing
    spares: SparesStatus = SparesStatus()
    absent_slots: tuple[int, ...] = ()  # of a job that failed without them
    checkpoints: CheckpointsStatus
    recoveries: tuple[RecoveryStatus, ...]
    watermark_ms: int | None  # the slots' minimum
    records: int  # read by sources
    records_after_checkpoint: int | None = None  # at least, once the run has ended; None: unknown
    latency: dict[str, LatencyStatus]  # by "<sink>:processed" or "<sink>:visible", since the slots' processes began
    latency_last_minute: dict[str, LatencyStatus] = {}
    commits: CommitsStatus
    kill: tuple[KillRequest, ...]
    options: dict[str, str | float | bool | None]
    restored_checkpoint: int
    savepoints: tuple[SavepointStatus, ...] = ()  # last 50, oldest first
    storage_trouble: str = ""  # why store requests are retried
    at_ms: int = 0  # 0: the run has ended
    chains: tuple[ChainStatus, ...] = ()  # in topological order
    sources: tuple[SourceStatus, ...] = ()
    latency_hour: dict[str, tuple[LatencyPoint, ...]] = {}  # a point per minute, oldest first
    failures: tuple[FailureStatus, ...] = ()
    takeovers: tuple[TakeoverStatus, ...] = ()
    taken_over: int = 0
    rescales: tuple[RescaleStatus, ...] = ()  # last 50, oldest first
    standbys: StandbysWanted | None = None
    program: str = ""
    program_wanted: ProgramWanted | None = None
    brief: bool = False  # without the parts that `completed_brief` takes from an earlier status


_OMITTED = ("slots", "preflight", "chains", "sources", "latency", "latency_last_minute", "latency_hour")


def completed_brief(brief: JobStatus, last: JobStatus) -> JobStatus:
    checkpoints = msgspec.structs.replace(brief.checkpoints, history=last.checkpoints.history)
    omitted = {name: getattr(last, name) for name in _OMITTED}
    return msgspec.structs.replace(brief, brief=False, checkpoints=checkpoints, **omitted)


def without_subtasks(status: JobStatus) -> JobStatus:
    checkpoints = status.checkpoints
    history = tuple(msgspec.structs.replace(each, subtasks=(), phases=b"") for each in checkpoints.history)
    return msgspec.structs.replace(status, checkpoints=msgspec.structs.replace(checkpoints, history=history))


_HOLDERS = 100
_NAME = 100
_ERROR = 1_000


def bounded(room: Room) -> Room:
    largest = sorted(room.held_by.items(), key=lambda each: -each[1])[:_HOLDERS]
    held_by = {_printable(name): cores for name, cores in largest}
    return msgspec.structs.replace(room, held_by=held_by, failing=_printable(room.failing, _ERROR))


def with_holders(status: JobStatus, jobs: Mapping[str, int]) -> JobStatus:
    """The program's report wins over this daemon's `jobs`."""
    if not status.missing_slots or status.outcome is not None:
        return status
    room = status.room or Room()
    others = {name: slots for name, slots in jobs.items() if slots and name != status.job}
    return msgspec.structs.replace(status, room=msgspec.structs.replace(room, held_by={**others, **room.held_by}))


def _printable(text: str, longest: int = _NAME) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:longest])
