"""Messages between slots and coordinator, and the job's description. Typed, never pickled.

Messages carry a fencing token where needed; the connection (see `handshake`) has proven job, run and slot. Times are
milliseconds unless named otherwise. `checkpoint` is always a checkpoint id.
"""

from typing import Literal

import msgspec

from barrier_runtime.coordinator.option_types import CheckpointOptions as CheckpointOptions
from barrier_runtime.coordinator.option_types import RestartOptions as RestartOptions
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, SnapshotTimes, StateDescription

PROTOCOL_VERSION = 3  # of messages and handshake
STABLE_KIND = "stable"  # steps that release rows after a decision, see `ChainSpec.kinds`
ACCEPTED_PROTOCOLS = (PROTOCOL_VERSION,)  # of slots, by a coordinator


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


class ChainSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator chain, for the coordinator. Every chain has `parallelism` subtasks."""

    chain: int
    operators: tuple[str, ...]
    stateful: tuple[str, ...] = ()  # operators whose snapshots a restore must assign
    sinks: tuple[str, ...] = ()  # operators that commit
    global_sinks: tuple[str, ...] = ()  # those `sinks` with a global committer, in subtask 0
    is_source: bool = False
    definitions: dict[str, str] = {}  # operator -> definition of state, see `state.snapshots.snapshot.DEFINITION`
    keys: dict[str, str] = {}  # operator -> typed columns of keys, if known
    states: dict[str, dict[str, StateDescription]] = {}  # operator -> declared state -> description
    inputs: tuple[int, ...] = ()  # chains that send rows here; for people
    kinds: dict[str, str] = {}  # operator -> kind of step, see `state.snapshots.snapshot.KIND`
    targets: dict[str, str] = {}  # sink -> target, if known
    columns: dict[str, dict[str, str]] = {}  # operator -> column that the state depends on, if known -> type
    commit_every_ms: dict[str, int] = {}  # `global_sinks` with held commits -> interval


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Submitted description of a job, without code and secrets; stored in the FENCE record."""

    job: str
    run_id: str  # of a run of the user's program; another run fences this run
    submitter: str  # "user@host pid 123", for people
    parallelism: int
    max_parallelism: int
    chains: tuple[ChainSpec, ...]
    checkpoints: CheckpointOptions = CheckpointOptions()
    restore: str = "latest"  # "latest", "none" or a checkpoint id
    allow_replay: bool = False  # restore a checkpoint older than the last completed one
    allow_non_restored: bool = False  # drop state whose operator is gone
    allow_drained: bool = False  # continue with state of a job whose input was ended early
    slot_timeout_ms: int = 10_000  # a slot silent for this long is lost
    resource_wait_timeout_ms: int = msgspec.field(default=60_000, name="gang_timeout_ms")  # for all slots to register
    resume_timeout_ms: int = 3_000  # wait of a restarted coordinator for running slots
    reconnect_grace_ms: int = 500  # for a slot with a broken connection to return without a restart
    restart: RestartOptions = RestartOptions()
    progress_timeout_ms: int = 0  # report missing checkpoints or commits after this time; 0: see `options`
    store_write_price: float = 5.0  # US dollars for a million requests
    store_read_price: float = 0.4
    program: str = ""  # of the run; "": the first program, else id of the request to replace
    fingerprint: str = ""  # of the program's code and structure; "": unknown
    outdated: tuple[str, ...] = ()  # replaced programs: runs of these fingerprints are refused
    allow_outdated: bool = False  # … unless allowed
    at_least: int | None = None  # fewest slots that suffice, if others stay away; None: the job waits for all
    degrade_after_ms: int = 60_000  # … after slots have been missing for this long
    full_parallelism: int = 0  # slots to which the job returns; 0: `parallelism`. See `phases/width`
    narrow_because: str = ""  # slots that stayed away
    carrier: Literal["spark", "processes"] = "spark"  # runs the slots, and replaces dead slots


class SubtaskId(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    chain: int
    index: int

    def __str__(self) -> str:
        return f"{self.chain}/{self.index}"


class SlotClaims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A slot's claims in the handshake of a control connection; Register must repeat them."""

    slot: int
    uuid: str


class Register(Message, frozen=True, omit_defaults=True):
    """First message on every (re)connection. A known uuid is a survivor, not a new slot."""

    slot: int
    uuid: str  # of this Python process
    pid: int
    host: str
    task_attempt: int  # Spark's task attempt id; higher replaces lower
    data_host: str
    data_port: int
    token: int  # 0: never deployed
    phase: Literal["idle", "restoring", "running", "paused"]  # paused: running, with stopped sources
    highest_checkpoint: int = 0  # of all seen barriers and triggers
    committed: dict[str, int] = {}  # `sink_key` -> committed up to this checkpoint
    ended: tuple[SubtaskId, ...] = ()  # subtasks at the end of input in generation `token`
    died: dict[int, str] = {}  # this host's processes that a signal killed recently: pid -> "SIGSEGV"
    drained: bool = False  # sources were ended early in generation `token`
    program: str = ""  # as in `JobSpec`
    broken: str = ""  # why the slot cannot run the program, and is never deployed
    versions: dict[str, str] = {}  # of the slot's process, see `versions`; empty: unknown
    parallelism: int = 0  # of the last deployment, to which `committed` refers; 0: unknown


class HeldBack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Split that holds back a source's event time in a slot.

    `split`: shortened id of the slowest unfinished split; "": none.
    """

    split: str = ""
    watermark_ms: int | None = None  # None: no row yet
    idle: bool = False  # no split, or all empty for the idle timeout
    idle_splits: tuple[str, ...] = ()  # some splits empty for the idle timeout, ids shortened
    idle_count: int = 0  # number of these splits


class Heartbeat(Message, frozen=True):
    token: int
    metrics: dict[str, float] = {}  # see `metric_table`: counters ("<operator>.late_rows") and gauges ("rss_bytes")
    latency: dict[str, str] = {}  # "<sink>:processed" / "<sink>:visible" -> HdrHistogram, base64 (µs; of this process)
    sent_at_ms: int = 0
    opening: dict[str, float] = {}  # restoring sources and operators -> seconds so far
    blocked: str = ""  # subtask whose step blocked the slot for seconds, since the last heartbeat
    sources: dict[str, HeldBack] = {}
    prefetched: int = 0  # checkpoint of the last completed `Prefetch`
    unheard: dict[int, int] = {}  # slots unheard for several heartbeats -> milliseconds
    blocked_reading: bool = False  # mostly in a reader of this package


class EventTimeReached(Message, frozen=True):
    """Event time of this slot's sources, in a job with `max_drift`; unlisted sources have ended here.

    Answered by `LowestEventTime`.
    """

    token: int
    sources: dict[str, HeldBack] = {}


class Restored(Message, frozen=True):
    """State is restored, and every channel of this slot connected."""

    token: int


class Ack(Message, frozen=True):
    token: int
    checkpoint: int
    subtask: SubtaskId
    operators: tuple[OperatorSnapshot, ...]
    times: SnapshotTimes = SnapshotTimes()
    ended: bool = False  # the subtask was at the end of input


class Decline(Message, frozen=True):
    """The subtask refuses the checkpoint. `unavailable`: because a server does not answer."""

    token: int
    checkpoint: int
    subtask: SubtaskId
    reason: str
    unavailable: bool = False


class SubtaskEnded(Message, frozen=True):
    """The subtask read (a source: emitted) the last element, and continues to answer triggers."""

    token: int
    subtask: SubtaskId


GLOBAL_COMMITTER = -1  # "subtask" of a sink's global committer, which runs in subtask 0


class Committed(Message, frozen=True):
    """A sink subtask (or `GLOBAL_COMMITTER`) has committed everything up to `checkpoint`."""

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
    """While restoring: `operator` cannot open, because a server does not answer. The slot retries."""

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
    error: str  # user traceback, error, place, remedy
    retryable: bool
    unavailable: bool = False


class Registered(Message, frozen=True):
    """Answer to Register. `last_completed` replaces a lost CheckpointComplete."""

    token: int
    last_completed: int
    heartbeat_ms: int


class CancelGeneration(Message, frozen=True, tag="Halt"):  # name on the wire
    """Stop every subtask; keep the process, and copies of `keep_checkpoint`."""

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

    `manifest`: instead, if the snapshots are too large for a message; the slot selects them there.
    """

    token: int
    checkpoint: int  # 0: no state
    peers: tuple[Peer, ...]
    operators: tuple[OperatorSnapshot, ...] = ()
    lineage: str = ""  # of all state that grew from the same start: targets ignore memories of other lineages
    settled: bool = False  # all listed transactions are visible: no check by sinks
    manifest: ManifestRef | None = None
    drained: bool = False  # this run has ended the sources early: they read nothing more
    reopened: bool = False  # another run had; this run reads on: ended event time begins anew
    first_sha256: str = ""  # of the log's first record, unique to the log; empty: unknown


class Prefetch(Message, frozen=True):
    """Fetch missing files of this checkpoint, and stop compacting databases. Repeatable for later checkpoints.

    The job may continue from this or a later checkpoint with `parallelism` slots. Answered by `Heartbeat.prefetched`.
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
    aligned_timeout_ms: int | None = None  # as in `Barrier`: 0: unaligned at once, None: aligned without limit
    stop: bool = False  # the job stops with this checkpoint: the slot's last figures precede acks and commits
    pause: bool = False  # sources then read nothing, unless the checkpoint aborts: the job moves or stops
    overtakes_timers: bool = False  # aligned, but barriers do not wait for many due timers


class EndSources(Message, frozen=True):
    """Drain: every source ends now; windows and timers fire as at the end of all input.

    Sent to every slot, perhaps repeatedly, while no checkpoint is pending; none is taken before all subtasks have
    ended.
    """

    token: int


class CheckpointComplete(Message, frozen=True, tag="Complete"):  # name on the wire
    """`checkpoint` is decided: commit everything up to that checkpoint. May be repeated."""

    token: int
    checkpoint: int


class CommitGlobally(Message, frozen=True):
    """To slot 0: all subtasks of sink `operator` have committed `checkpoint`; make everything visible. Repeatable.

    `snapshots`: the sink's part of the manifest; `manifest`: its place, if the part is too large for a message.
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

    Least int64: a split has no rows, or a slot has not reported; greatest: no split holds others back.
    """

    token: int
    watermark_ms: int


class AbortCheckpoint(Message, frozen=True):
    token: int
    checkpoint: int
    reason: str


class Heard(Message, frozen=True):
    """Answer to a Heartbeat: the coordinator lives, though it may send nothing else for hours."""


class TryElsewhere(Message, frozen=True):
    """Try the next address: another daemon (`reason`) leads the slot's run, or the run is unknown here."""

    reason: str


class Shutdown(Message, frozen=True):
    """Leave. `reason`: for the user; `outcome`: end of the job for this slot."""

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
    """Returns the name of a sink subtask or global committer in figures: "out/0", "out/global"."""
    return f"{operator}/{'global' if subtask == GLOBAL_COMMITTER else subtask}"
