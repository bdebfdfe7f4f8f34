"""What a job tells the outside: one frozen snapshot of everything worth seeing. Plain data, JSON through msgspec.

Times called `_ms` without further words are wall-clock milliseconds; durations end in `duration_ms`.
"""

import msgspec


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


class CheckpointsStatus(msgspec.Struct, frozen=True, kw_only=True):
    triggered: int = 0
    completed: int = 0
    failed: int = 0
    in_progress: tuple[int, ...] = ()
    waiting_for: tuple[str, ...] = ()  # subtasks ("chain/index") the oldest one in progress waits for
    ignored: dict[str, int] = {}  # acks and declines without effect, by reason
    last_completed: CheckpointStatus | None = None
    history: tuple[CheckpointStatus, ...] = ()  # the last 100, oldest first


class RecoveryStatus(msgspec.Struct, frozen=True):
    token: int
    reason: str
    started_ms: int  # the trouble was noticed
    slots_ready_ms: int | None  # all slots registered
    running_ms: int | None
    duration_ms: int | None


class LatencyStatus(msgspec.Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p99: float
    max: float
    count: int


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


class CommitTrouble(msgspec.Struct, frozen=True):
    sink: str  # "<operator>/<subtask>"
    checkpoint: int
    attempts: int
    error: str


class CommitsStatus(msgspec.Struct, frozen=True):
    through: dict[str, int]  # "<operator>/<subtask>" -> everything up to this checkpoint is visible
    troubles: tuple[CommitTrouble, ...]


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
    absent_slots: tuple[int, ...] = ()  # did not come within the resource wait timeout, and the job failed for that
    checkpoints: CheckpointsStatus
    recoveries: tuple[RecoveryStatus, ...]
    watermark_ms: int | None  # the slots' minimum
    records: int  # read by sources
    latency: dict[str, LatencyStatus]  # "<sink>:processed", "<sink>:visible"; since the slots' processes began
    latency_last_minute: dict[str, LatencyStatus] = {}
    commits: CommitsStatus
    kill: tuple[KillRequest, ...]
    options: dict[str, str | int | bool | None]
    restored_checkpoint: int
    savepoints: tuple[SavepointStatus, ...] = ()  # asked of this coordinator, oldest first
    storage_trouble: str = ""  # what the object store is retried for
