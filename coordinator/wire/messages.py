"""Messages between slots and coordinator, and the job's description. Typed, never pickled.

Each message has a fencing token where one applies; the connection (see `handshake`) has proven job, run and slot. Times
are milliseconds unless the name says otherwise. `checkpoint` is always a checkpoint id.
"""

from typing import Literal

import msgspec

from barrier_runtime.coordinator.option_types import CheckpointOptions as CheckpointOptions
from barrier_runtime.coordinator.option_types import RestartOptions as RestartOptions
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, SnapshotTimes, StateDescription

PROTOCOL_VERSION = 3  # of messages and of the handshake before them
STABLE_KIND = "stable"  # kind of the steps that release rows after a decision, see `ChainSpec.kinds`
ACCEPTED_PROTOCOLS = (PROTOCOL_VERSION,)  # of slots, by a coordinator


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


# ---------------------------------------------------------------- the job


class ChainSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator chain, as far as the coordinator needs it. Every chain has `parallelism` subtasks."""

    chain: int
    operators: tuple[str, ...]  # names, in order
    stateful: tuple[str, ...] = ()  # operators whose snapshots a restore must assign
    sinks: tuple[str, ...] = ()  # operators that commit
    global_sinks: tuple[str, ...] = ()  # those `sinks` with a global committer, in subtask 0
    is_source: bool = False
    definitions: dict[str, str] = {}  # operator -> definition of the state, see `state.snapshots.snapshot.DEFINITION`
    keys: dict[str, str] = {}  # operator -> columns of the keys, with types, if known
    states: dict[str, dict[str, StateDescription]] = {}  # operator -> declared state -> description
    inputs: tuple[int, ...] = ()  # chains that send rows here; for people
    kinds: dict[str, str] = {}  # operator -> kind of step, see `state.snapshots.snapshot.KIND`
    targets: dict[str, str] = {}  # sink -> target, if known
    columns: dict[str, dict[str, str]] = {}  # operator -> columns that the state depends on, if known -> type
    commit_every_ms: dict[str, int] = {}  # `global_sinks` with held commits -> interval


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Submitted description of a job, without code and secrets. The FENCE record stores it."""

    job: str
    run_id: str  # of a run of the user's program, which another run of the same job fences
    submitter: str  # "user@host pid 123", for people
    parallelism: int
    max_parallelism: int
    chains: tuple[ChainSpec, ...]
    checkpoints: CheckpointOptions = CheckpointOptions()
    restore: str = "latest"  # "latest", "none" or a checkpoint id
    allow_replay: bool = False  # restore a checkpoint older than the last completed one
    allow_non_restored: bool = False  # state whose operator is gone may be dropped
    allow_drained: bool = False  # continue with state of a job whose input was ended early
    slot_timeout_ms: int = 10_000  # a slot silent for this long is lost
    resource_wait_timeout_ms: int = msgspec.field(default=60_000, name="gang_timeout_ms")  # for all slots to register
    resume_timeout_ms: int = 3_000  # wait of a restarted coordinator for running slots
    reconnect_grace_ms: int = 500  # for a slot with a broken connection to return without a restart
    restart: RestartOptions = RestartOptions()
    progress_timeout_ms: int = (
        0  # without checkpoint or commit for this long, the status reports that; 0: see `options`
    )
    store_write_price: float = 5.0  # US dollars for a million requests, for display
    store_read_price: float = 0.4
    program: str = ""  # the run's present program; "": the first program, else id of the request to replace
    fingerprint: str = ""  # of the program's code and structure, equal for equal source files; "": unknown
    outdated: tuple[str, ...] = ()  # fingerprints of replaced programs: runs of them are refused
    allow_outdated: bool = False  # … unless allowed
    at_least: int | None = None  # fewest slots with which the job continues without the others; None: it waits
    degrade_after_ms: int = 60_000  # … after slots have been missing for this long
    full_parallelism: int = 0  # number of slots to which the job returns; 0: `parallelism`. See `phases/width`
    narrow_because: str = ""  # slots that stayed away, so that the job has fewer
    carrier: Literal["spark", "processes"] = "spark"  # runs the slots, and replaces a dead slot


class SubtaskId(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    chain: int
    index: int

    def __str__(self) -> str:
        return f"{self.chain}/{self.index}"


# ---------------------------------------------------------------- slot -> coordinator


class SlotClaims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Claims that a slot binds into the handshake of a control connection; Register must repeat them."""

    slot: int
    uuid: str


class Register(Message, frozen=True, omit_defaults=True):
    """First message of a slot on every (re)connection. A known uuid means a survivor, not a new slot."""

    slot: int
    uuid: str  # of this Python process
    pid: int
    host: str
    task_attempt: int  # Spark's task attempt id; higher replaces lower
    data_host: str
    data_port: int
    token: int  # 0: never deployed
    phase: Literal["idle", "restoring", "running", "paused"]  # paused: running, with stopped sources
    highest_checkpoint: int = 0  # of all barriers and triggers seen
    committed: dict[str, int] = {}  # `sink_key` -> all transactions up to this checkpoint are committed
    ended: tuple[SubtaskId, ...] = ()  # subtasks that reached the end of their input in generation `token`
    died: dict[int, str] = {}  # processes of this host that a signal killed recently: pid -> "SIGSEGV"
    drained: bool = False  # the sources were ended early in generation `token`
    program: str = ""  # of the slot's program, as in `JobSpec`
    broken: str = ""  # why the slot cannot run the program; then it is never deployed
    versions: dict[str, str] = {}  # of the slot's process, see `versions`; empty: unknown
    parallelism: int = 0  # of the last deployment, to which `committed` refers; 0: unknown


class HeldBack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Split that holds back the event time of a source in a slot.

    `split`: shortened id of the slowest unfinished split; "" if there is none.
    """

    split: str = ""
    watermark_ms: int | None = None  # None: that split has had no row yet
    idle: bool = False  # no split, or all have been empty for the idle timeout
    idle_splits: tuple[str, ...] = ()  # some splits empty for the idle timeout, ids shortened
    idle_count: int = 0  # number of splits empty for the idle timeout


class Heartbeat(Message, frozen=True):
    token: int
    metrics: dict[str, float] = {}  # see `metric_table`: counters ("<operator>.late_rows") and gauges ("rss_bytes")
    latency: dict[
        str, str
    ] = {}  # "<sink>:processed" / "<sink>:visible" -> HdrHistogram, base64 (µs; all of this process)
    sent_at_ms: int = 0
    opening: dict[str, float] = {}  # sources and operators that are being restored -> seconds so far
    blocked: str = ""  # subtask whose step blocked the slot for seconds, since the last heartbeat
    sources: dict[str, HeldBack] = {}  # those with event time
    prefetched: int = 0  # checkpoint of the last `Prefetch` that is done
    unheard: dict[int, int] = {}  # slots that this slot has not heard for several heartbeats -> milliseconds
    blocked_reading: bool = False  # a reader of this package needed most of the step in `blocked`


class EventTimeReached(Message, frozen=True):
    """Event time of this slot's sources, in a job with `max_drift`. Answered by `LowestEventTime`.

    A source that is not listed has ended here.
    """

    token: int
    sources: dict[str, HeldBack] = {}


class Restored(Message, frozen=True):
    """State is restored and every channel of this slot is connected."""

    token: int


class Ack(Message, frozen=True):
    token: int
    checkpoint: int
    subtask: SubtaskId
    operators: tuple[OperatorSnapshot, ...]
    times: SnapshotTimes = SnapshotTimes()
    ended: bool = False  # the subtask had reached the end of its input


class Decline(Message, frozen=True):
    """The subtask refuses the checkpoint. `unavailable`: because a server does not answer."""

    token: int
    checkpoint: int
    subtask: SubtaskId
    reason: str
    unavailable: bool = False


class SubtaskEnded(Message, frozen=True):
    """The subtask read (or, a source, emitted) the last element. The subtask continues to answer triggers."""

    token: int
    subtask: SubtaskId


GLOBAL_COMMITTER = -1  # the "subtask" of a sink's global committer, which runs in subtask 0, in reports


class Committed(Message, frozen=True):
    """All transactions of a sink subtask (or `GLOBAL_COMMITTER`) up to `checkpoint` are committed."""

    token: int
    checkpoint: int
    operator: str
    subtask: int


class CommitFailing(Message, frozen=True):
    """A commit failed and is being retried. For status only."""

    token: int
    checkpoint: int
    operator: str
    subtask: int
    attempts: int
    error: str


class Waiting(Message, frozen=True):
    """While restoring: `operator` cannot open yet, because a server does not answer. The slot retries."""

    token: int
    operator: str
    attempts: int
    error: str


class SubtaskFailed(Message, frozen=True):
    """A subtask cannot continue. `retryable`: a new generation may help; else the job fails with `error`.

    `unavailable`: because a server does not answer.
    """

    token: int
    subtask: SubtaskId | None
    operator: str
    error: str  # for the user: user traceback first, then error, place, remedy
    retryable: bool
    unavailable: bool = False


# ---------------------------------------------------------------- coordinator -> slot


class Registered(Message, frozen=True):
    """Answer to Register. `last_completed` replaces a lost CheckpointComplete."""

    token: int
    last_completed: int
    heartbeat_ms: int


class CancelGeneration(Message, frozen=True, tag="Halt"):  # the name on the wire
    """Stop every subtask for a new generation; keep the process, and copies of `keep_checkpoint`."""

    token: int
    keep_checkpoint: int


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    slot: int
    uuid: str
    host: str
    port: int


class ManifestRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decided manifest that a slot reads from the store."""

    key: str
    sha256: str


class Deploy(Message, frozen=True, omit_defaults=True):
    """Restore and connect. `operators`: snapshots for subtasks of this slot (all when rescaling).

    If the snapshots are too large for a message, `manifest` is set instead, and the slot selects them there.
    """

    token: int
    checkpoint: int  # 0: start without state
    peers: tuple[Peer, ...]
    operators: tuple[OperatorSnapshot, ...] = ()
    lineage: str = ""  # of all state that grew from the same start: a target's memory of another lineage does not count
    settled: bool = False  # all listed transactions are visible: sinks need not check
    manifest: ManifestRef | None = None
    drained: bool = False  # this run has ended the sources early: they read nothing more
    reopened: bool = False  # another run had, and this run reads on: ended event time begins anew
    first_sha256: str = ""  # of the log's first record, unique to the log; empty: unknown


class Prefetch(Message, frozen=True):
    """Fetch missing files of this checkpoint, and stop compacting databases.

    The job may continue from this checkpoint or later with `parallelism` slots. May be repeated for later ones;
    answered by `Heartbeat.prefetched`.
    """

    checkpoint: int
    manifest: ManifestRef
    parallelism: int
    max_parallelism: int


class Start(Message, frozen=True):
    token: int


class Trigger(Message, frozen=True, omit_defaults=True):  # omitted defaults suit older slots
    """Take checkpoint `checkpoint`. Sent to every slot; may be repeated."""

    token: int
    checkpoint: int
    triggered_at_ms: int
    aligned_timeout_ms: int | None = None  # as in `Barrier`: 0: unaligned at once, None: aligned without a time limit
    stop: bool = False  # the job stops with this checkpoint: the slot's last figures precede acks and commits
    pause: bool = False  # sources read nothing after it unless it aborts: job moves or stops
    overtakes_timers: bool = False  # aligned, but barriers do not wait for many due timers


class EndSources(Message, frozen=True):
    """Drain: every source ends now, so windows and timers fire as at the end of all input.

    Sent to every slot while no checkpoint is pending; none is taken before all subtasks have ended. May be repeated.
    """

    token: int


class CheckpointComplete(Message, frozen=True, tag="Complete"):  # the name on the wire
    """`checkpoint` is decided: commit all transactions up to that checkpoint. May be repeated."""

    token: int
    checkpoint: int


class CommitGlobally(Message, frozen=True):
    """To slot 0: all subtasks of sink `operator` have committed `checkpoint`; make everything visible.

    `snapshots`: the sink's part of that checkpoint's manifest; `manifest`: place of the manifest, if the part is too
    large for a message. May be repeated.
    """

    token: int
    checkpoint: int
    operator: str
    snapshots: tuple[OperatorSnapshot, ...] = ()
    manifest: ManifestRef | None = None


class Visible(Message, frozen=True):
    """To every slot: a global committer of sink `operator` shows all up to `checkpoint`. Repeatable."""

    token: int
    checkpoint: int
    operator: str


class LowestEventTime(Message, frozen=True):
    """Answer to `EventTimeReached`: the lowest watermark that any split of the job allows.

    The least int64: of a split without rows, or a slot without a report; the greatest: no split holds others back.
    """

    token: int
    watermark_ms: int


class AbortCheckpoint(Message, frozen=True):
    token: int
    checkpoint: int
    reason: str


class Heard(Message, frozen=True):
    """Answer to a Heartbeat: the coordinator lives, although it may send nothing else for hours."""


class TryElsewhere(Message, frozen=True):
    """Try the next address: another daemon leads the slot's run, or the run is unknown here.

    `reason` names the leader.
    """

    reason: str


class Shutdown(Message, frozen=True):
    """Leave. `reason` is for the user; `outcome`: end of the job for this slot."""

    outcome: Literal["finished", "failed", "cancelled", "fenced", "replaced", "left"]  # left: the job needs fewer slots
    reason: str


ToCoordinator = (
    Register
    | Heartbeat
    | EventTimeReached
    | Restored
    | Ack
    | Decline
    | SubtaskEnded
    | Committed
    | CommitFailing
    | Waiting
    | SubtaskFailed
)
ToSlot = (
    Registered
    | CancelGeneration
    | Deploy
    | Prefetch
    | Start
    | Trigger
    | EndSources
    | CheckpointComplete
    | CommitGlobally
    | Visible
    | LowestEventTime
    | AbortCheckpoint
    | Heard
    | TryElsewhere
    | Shutdown
)


def sink_key(operator: str, subtask: int) -> str:
    """Returns the name of a sink subtask, or of the global committer, in figures: "out/0", "out/global"."""
    return f"{operator}/{'global' if subtask == GLOBAL_COMMITTER else subtask}"
