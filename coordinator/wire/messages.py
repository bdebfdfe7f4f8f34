"""Messages between slots and coordinator. Times are milliseconds unless named otherwise.

Messages carry a fencing token where needed; the connection (see `handshake`) has proven job, run and slot.
"""

from typing import Literal, TypeAlias

import msgspec

from barrier_runtime.coordinator.option_types import CheckpointOptions as CheckpointOptions
from barrier_runtime.coordinator.option_types import RestartOptions as RestartOptions
from barrier_runtime.coordinator.wire.job_spec import STABLE_KIND as STABLE_KIND
from barrier_runtime.coordinator.wire.job_spec import ChainSpec as ChainSpec
from barrier_runtime.coordinator.wire.job_spec import JobSpec as JobSpec
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, SnapshotTimes

PROTOCOL_VERSION = 3
ACCEPTED_PROTOCOLS = (PROTOCOL_VERSION,)  # from 0.1.0 on also the version before
DATA_VERSION = 4  # of connections between slots; 3: a connection per channel


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The tag is the class name."""


class SubtaskId(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    chain: int
    index: int

    def __str__(self) -> str:
        return f"{self.chain}/{self.index}"


class SlotClaims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Register must repeat these claims of the handshake."""

    slot: int
    uuid: str


class SlotFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    clock_ms: int  # wall clock
    open_files: int  # limit of the process
    free_bytes: int  # of the folder for local state
    folder: str


class Register(Message, frozen=True, omit_defaults=True):
    """A known uuid is a survivor."""

    slot: int
    uuid: str  # of this Python process
    pid: int
    host: str
    task_attempt: int  # of Spark; higher replaces lower
    data_host: str
    data_port: int
    token: int  # 0: never deployed
    phase: Literal["idle", "restoring", "running", "paused"]  # paused: running, with stopped sources
    highest_checkpoint: int = 0  # of all seen barriers and triggers
    committed: dict[str, int] = {}  # `sink_key` -> committed up to this checkpoint
    ended: tuple[SubtaskId, ...] = ()  # at the end of input in generation `token`
    died: dict[int, str] = {}  # killed processes of this host: pid -> "SIGSEGV"
    drained: bool = False  # sources were ended early in generation `token`
    program: str = ""  # as in `JobSpec`
    broken: str = ""  # why the slot is never deployed
    versions: dict[str, str] = {}  # see `versions`
    parallelism: int = 0  # of the last deployment, for `committed`
    facts: SlotFacts | None = None  # None: of an earlier release
    answers: bool = False  # to an `AskSlot`; False: of an earlier release
    succeeds: bool = False  # waits beside the process that has the slot
    seat: int = -1  # number of the last deployment, if other than `slot`


class Probed(Message, frozen=True):
    store: str  # "": the slot has read the store; else the error
    store_ms: int
    unreached: dict[int, str] = {}  # slot -> error of a connection


class HeldBack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`split`: shortened id of the slowest unfinished split; "": none."""

    split: str = ""
    watermark_ms: int | None = None  # None: no row yet
    idle: bool = False  # no split, or all empty for the idle timeout
    idle_splits: tuple[str, ...] = ()  # ids of splits empty for the idle timeout, shortened
    idle_count: int = 0


class Heartbeat(Message, frozen=True, omit_defaults=True):
    token: int
    metrics: dict[str, float] = {}  # see `metric_table`: "<operator>.late_rows", "rss_bytes"
    latency: dict[str, str] = {}  # "<sink>:processed" / "<sink>:visible" -> HdrHistogram (µs), base64
    sent_at_ms: int = 0
    opening: dict[str, float] = {}  # restoring sources and operators -> seconds so far
    blocked: str = ""  # subtask whose step blocked the slot for seconds
    sources: dict[str, HeldBack] = {}
    prefetched: int = 0  # newest checkpoint with all files fetched
    unheard: dict[int, int] = {}  # slots unheard for several heartbeats -> milliseconds
    blocked_reading: bool = False  # mostly in a reader or sink of this package
    notices: int = 0  # signals to leave the host
    blocked_starved: bool = False  # mostly without a core


class EventTimeReached(Message, frozen=True):
    """Sent only with `max_drift`; unlisted sources have ended here."""

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
    """`unavailable`: a server does not answer."""

    token: int
    checkpoint: int
    subtask: SubtaskId
    reason: str
    unavailable: bool = False


class SubtaskEnded(Message, frozen=True):
    """The subtask read (a source: emitted) the last element. Triggers are still answered."""

    token: int
    subtask: SubtaskId


GLOBAL_COMMITTER = -1  # runs in subtask 0


class Committed(Message, frozen=True):
    """Everything up to `checkpoint` is committed. `subtask` may be `GLOBAL_COMMITTER`."""

    token: int
    checkpoint: int
    operator: str
    subtask: int


class CommitFailing(Message, frozen=True):
    """For status only: the commit is retried."""

    token: int
    checkpoint: int
    operator: str
    subtask: int
    attempts: int
    error: str


class Waiting(Message, frozen=True):
    """A server that a restoring `operator` needs does not answer. The slot retries."""

    token: int
    operator: str
    attempts: int
    error: str


class SubtaskFailed(Message, frozen=True):
    """`retryable`: a new generation may help; else the job fails with `error`.

    `unavailable`: as in `Decline`.
    """

    token: int
    subtask: SubtaskId | None
    operator: str
    error: str
    retryable: bool
    unavailable: bool = False


class SlotAnswer(Message, frozen=True):
    """`refusal`: why there are no lines; else ""."""

    number: int
    lines: tuple[str, ...] = ()
    refusal: str = ""


class Registered(Message, frozen=True):
    """`last_completed` replaces a lost CheckpointComplete."""

    token: int
    last_completed: int
    heartbeat_ms: int


Subject: TypeAlias = Literal["log", "stacks"]


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    slot: int
    uuid: str
    host: str
    port: int


class Probe(Message, frozen=True):
    """Connect to `peers` and read the store, beside the deployment."""

    peers: tuple[Peer, ...]


MOST_ROWS = 50


class AskSlot(Message, frozen=True):
    """A client's question. The job does not wait for the answer."""

    number: int
    subject: Subject | Literal["rows"]
    step: str = ""  # rows that this step sends on; of a sink, arriving rows
    count: int = 0  # at most `MOST_ROWS`


class CancelGeneration(Message, frozen=True, tag="Halt"):  # name on the wire
    """Stop every subtask; keep the process, and copies of `keep_checkpoint`."""

    token: int
    keep_checkpoint: int


class ManifestRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    sha256: str


class Deploy(Message, frozen=True, omit_defaults=True):
    """Restore and connect. `operators`: snapshots for subtasks of this slot (all when rescaling).

    `manifest`: instead, if the snapshots are too large for a message.
    """

    token: int
    checkpoint: int  # 0: no state
    peers: tuple[Peer, ...]
    operators: tuple[OperatorSnapshot, ...] = ()
    lineage: str = ""  # targets ignore memories of other lineages
    settled: bool = False  # all listed transactions are visible: no check by sinks
    manifest: ManifestRef | None = None
    drained: bool = False  # this run has ended the sources early
    reopened: bool = False  # another run had, but this run reads on: ended event time begins anew
    first_sha256: str = ""  # of the log's first record
    slot: int = -1  # number of the slot, if other than in Register


class Prefetch(Message, frozen=True, omit_defaults=True):
    """Fetch missing files, and stop compacting. May be repeated.

    The job may continue from this or a later checkpoint with `parallelism` slots.
    """

    checkpoint: int
    manifest: ManifestRef
    parallelism: int
    max_parallelism: int
    slot: int = -1  # number of the slot after the move, if other than in Register


class Start(Message, frozen=True):
    token: int


class Trigger(Message, frozen=True, omit_defaults=True):  # omitted defaults suit older slots
    """Sent to every slot; may be repeated."""

    token: int
    checkpoint: int
    triggered_at_ms: int
    aligned_timeout_ms: int | None = None  # as in `Barrier`: 0: unaligned at once, None: aligned without limit
    stop: bool = False  # the job stops with this checkpoint: the slot's last figures precede acks and commits
    pause: bool = False  # sources read nothing more, unless the checkpoint aborts
    overtakes_timers: bool = False  # barriers do not wait for many due timers


class EndSources(Message, frozen=True):
    """Drain: sources end now; windows and timers fire as at the end of input.

    Sent to every slot while no checkpoint is pending; may be repeated.
    """

    token: int


class CheckpointComplete(Message, frozen=True, tag="Complete"):  # name on the wire
    """Commit everything up to `checkpoint`. May be repeated."""

    token: int
    checkpoint: int


class CommitGlobally(Message, frozen=True):
    """To slot 0: all subtasks have committed; show everything up to `checkpoint`. May be repeated.

    `manifest`: instead of `snapshots` too large for a message.
    """

    token: int
    checkpoint: int
    operator: str
    snapshots: tuple[OperatorSnapshot, ...] = ()
    manifest: ManifestRef | None = None


class Visible(Message, frozen=True):
    """Sink `operator` shows all up to `checkpoint`. May be repeated."""

    token: int
    checkpoint: int
    operator: str


class LowestEventTime(Message, frozen=True):
    """Lowest watermark that any split of the job allows.

    Least int64: a split has no rows, or a slot has not reported; greatest: no split holds others back.
    """

    token: int
    watermark_ms: int


class AbortCheckpoint(Message, frozen=True):
    token: int
    checkpoint: int
    reason: str


class Heard(Message, frozen=True):
    """Answer to a Heartbeat."""


class TryElsewhere(Message, frozen=True):
    """Another daemon (`reason`) leads the slot's run, or the run is unknown here."""

    reason: str


class Shutdown(Message, frozen=True):
    """`reason`: for the user."""

    outcome: Literal["finished", "failed", "cancelled", "fenced", "replaced", "left"]  # left: the job needs fewer slots
    reason: str


ToJob = (
    Register
    | Probed
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
ToCoordinator = ToJob | SlotAnswer
ToSlot = (
    Registered
    | Probe
    | AskSlot
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
    return f"{operator}/{'global' if subtask == GLOBAL_COMMITTER else subtask}"
