"""Every message between a slot and the coordinator, and the job's description. Typed, tagged, versioned; never pickle.

Each message names its fencing token where one applies; the connection (see `handshake`) has proven job, run and slot.
Times are milliseconds unless the name says otherwise. `checkpoint` is always a checkpoint id.
"""

from typing import Literal

import msgspec

from barrier_runtime.coordinator.option_types import CheckpointOptions as CheckpointOptions
from barrier_runtime.coordinator.option_types import RestartOptions as RestartOptions
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, SnapshotTimes, StateDescription

PROTOCOL_VERSION = 1  # of messages and of the handshake before them


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


# ---------------------------------------------------------------- the job


class ChainSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operator chain, as far as the coordinator needs to know it. Every chain has `parallelism` subtasks."""

    chain: int
    operators: tuple[str, ...]  # names, in order
    stateful: tuple[str, ...] = ()  # those whose snapshots a restore must find a home for
    sinks: tuple[str, ...] = ()  # those that commit
    global_sinks: tuple[str, ...] = ()  # those of `sinks` that also have one global committer, in subtask 0
    is_source: bool = False
    definitions: dict[
        str, str
    ] = {}  # operator -> what its state is a state of, see `state.snapshots.snapshot.DEFINITION`
    keys: dict[str, str] = {}  # operator -> the columns of its keys, with their types, where they are known
    states: dict[str, dict[str, StateDescription]] = {}  # operator -> state that its user declared -> what it is
    inputs: tuple[int, ...] = ()  # chains that send rows to this one; for people
    kinds: dict[str, str] = {}  # operator -> kind of step, see `state.snapshots.snapshot.KIND`
    targets: dict[str, str] = {}  # sink -> what it writes to, where it says so
    columns: dict[str, dict[str, str]] = {}  # operator -> columns that its state depends on, where known -> type
    commit_every_ms: dict[str, int] = {}  # of `global_sinks`: those whose commits are held back, and for how long


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the driver submits. Carries no code and no secret; it is stored in the FENCE record."""

    job: str
    run_id: str  # one run of the user's program; another run of the same job fences this one
    submitter: str  # "user@host pid 123", for people
    parallelism: int
    max_parallelism: int
    chains: tuple[ChainSpec, ...]
    checkpoints: CheckpointOptions = CheckpointOptions()
    restore: str = "latest"  # "latest", "none" or a checkpoint id
    allow_replay: bool = False  # restore something older than the last completed checkpoint
    allow_non_restored: bool = False  # state whose operator is gone may be dropped
    allow_drained: bool = False  # go on with state of a job whose input was ended early
    slot_timeout_ms: int = 10_000  # a slot silent for this long is lost
    resource_wait_timeout_ms: int = msgspec.field(default=60_000, name="gang_timeout_ms")  # for all slots to register
    resume_timeout_ms: int = 3_000  # a restarted coordinator waits this long for all slots to come back as they were
    reconnect_grace_ms: int = 500  # a slot whose connection broke may come back within this time without a restart
    restart: RestartOptions = RestartOptions()
    progress_timeout_ms: int = 0  # no checkpoint or commit for this long: the status says so; 0: see `options`
    store_write_price: float = 5.0  # US dollars for a million requests, to be shown
    store_read_price: float = 0.4
    program: str = ""  # which of this run's programs; "": that it began with, else the id of the request to replace it
    fingerprint: str = ""  # of the program's code and structure, equal for equal source files; "": not known
    outdated: tuple[str, ...] = ()  # fingerprints of programs that were replaced: a run with one of them is refused
    allow_outdated: bool = False  # … unless it is wanted


class SubtaskId(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    chain: int
    index: int

    def __str__(self) -> str:
        return f"{self.chain}/{self.index}"


# ---------------------------------------------------------------- slot -> coordinator


class SlotClaims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What a slot binds into the handshake of its control connection; its Register must say the same."""

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
    phase: Literal["idle", "restoring", "running", "paused"]  # paused: it runs, and its sources have stopped
    highest_checkpoint: int = 0  # highest barrier or trigger ever seen
    committed: dict[str, int] = {}  # `sink_key` -> all its transactions up to this checkpoint are committed
    ended: tuple[SubtaskId, ...] = ()  # those that reached the end of their input in generation `token`
    died: dict[int, str] = {}  # processes of this host that died of a signal lately: pid -> "SIGSEGV"
    drained: bool = False  # its sources were ended early in generation `token`
    program: str = ""  # as in `JobSpec`, of the program that it runs
    broken: str = ""  # why it cannot run its program; then it is never deployed


class HeldBack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What holds back the event time of one source in one slot. `split`: the unfinished one that is least far, its id
    shortened; "" if there is none."""

    split: str = ""
    watermark_ms: int | None = None  # None: that split has had no row yet
    idle: bool = False  # no split, or each has had nothing for the idle timeout
    idle_splits: tuple[str, ...] = ()  # some that have had nothing for the idle timeout, ids shortened
    idle_count: int = 0  # of all that have had nothing


class Heartbeat(Message, frozen=True):
    token: int
    metrics: dict[str, float] = {}  # see `metric_table`: counters ("<operator>.late_rows") and gauges ("rss_bytes")
    latency: dict[
        str, str
    ] = {}  # "<sink>:processed" / "<sink>:visible" -> HdrHistogram, base64 (µs; all of this process)
    sent_at_ms: int = 0
    opening: dict[str, float] = {}  # sources and operators that are being restored -> for how many seconds
    blocked: str = ""  # the subtask whose step kept the slot from everything else for seconds, since the last one
    sources: dict[str, HeldBack] = {}  # those with event time
    prefetched: int = 0  # the checkpoint of the last `Prefetch` that is done


class EventTimeReached(Message, frozen=True):
    """How far the sources with event time of this slot are, of a job with `max_drift`. Answered by `LowestEventTime`.
    A source that is not named has ended here."""

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
    """`unavailable`: because a server does not answer."""

    token: int
    checkpoint: int
    subtask: SubtaskId
    reason: str
    unavailable: bool = False


class SubtaskEnded(Message, frozen=True):
    """The subtask read (or, a source, emitted) its last element. It goes on answering triggers."""

    token: int
    subtask: SubtaskId


GLOBAL_COMMITTER = -1  # the "subtask" that a sink's global committer reports as; it runs in subtask 0


class Committed(Message, frozen=True):
    """Every transaction of this sink subtask up to `checkpoint` is committed; by `GLOBAL_COMMITTER`, of all of them."""

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
    """While restoring: `operator` cannot be opened in this slot because a server does not answer. It is tried again."""

    token: int
    operator: str
    attempts: int
    error: str


class SubtaskFailed(Message, frozen=True):
    """A subtask cannot go on. `retryable`: a new generation may cure it; else the job fails with `error`.
    `unavailable`: because a server does not answer."""

    token: int
    subtask: SubtaskId | None
    operator: str
    error: str  # for the user: user traceback first, then what, where, remedy
    retryable: bool
    unavailable: bool = False


# ---------------------------------------------------------------- coordinator -> slot


class Registered(Message, frozen=True):
    """Answer to Register. `last_completed` repeats what a lost CheckpointComplete would have said."""

    token: int
    last_completed: int
    heartbeat_ms: int


class CancelGeneration(Message, frozen=True, tag="Halt"):  # the name that is on the wire
    """A new generation begins: stop every subtask now, keep the process, keep local copies of `keep_checkpoint`."""

    token: int
    keep_checkpoint: int


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    slot: int
    uuid: str
    host: str
    port: int


class ManifestRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decided manifest, for a slot that is to read it from the store itself."""

    key: str
    sha256: str


class Deploy(Message, frozen=True, omit_defaults=True):
    """Restore this and connect. `operators`: every snapshot a subtask of this slot may need (all when rescaling). When
    they are too large for a message, `manifest` is set instead, and the slot picks them from there."""

    token: int
    checkpoint: int  # 0: start without state
    peers: tuple[Peer, ...]
    operators: tuple[OperatorSnapshot, ...] = ()
    lineage: str = ""  # of all state that grew from one start: what a target remembers of another one is not ours
    settled: bool = False  # every transaction that the snapshots list is visible: sinks need not look again
    manifest: ManifestRef | None = None
    drained: bool = False  # this run has ended its sources early: they read nothing more
    reopened: bool = False  # another run did, and this one reads on: event time that was at its end begins anew
    first_sha256: str = ""  # of the bytes of the log's first record, which no other log has; empty: not known


class Prefetch(Message, frozen=True):
    """The job may go on from this checkpoint, or a later one, with `parallelism` slots: fetch what of it this slot does
    not have, and let databases rest. May be repeated, for later ones; answered by `Heartbeat.prefetched`."""

    checkpoint: int
    manifest: ManifestRef
    parallelism: int
    max_parallelism: int


class Start(Message, frozen=True):
    token: int


class Trigger(Message, frozen=True, omit_defaults=True):  # what is not said older slots need not know
    """Take checkpoint `checkpoint`. Sent to every slot; may be repeated."""

    token: int
    checkpoint: int
    triggered_at_ms: int
    aligned_timeout_ms: int | None = None  # as in `Barrier`: 0: unaligned at once, None: aligned however long it takes
    stop: bool = False  # the job stops with it: the slot's last figures come before its acks and commits
    pause: bool = False  # sources read nothing after it, unless it is aborted: the job moves to other slots, or stops
    overtakes_timers: bool = False  # aligned, but where many timers are due its barriers do not wait for them


class EndSources(Message, frozen=True):
    """Drain: every source ends where it is, so windows and timers fire as at the end of all input. Sent to every slot
    while no checkpoint is under way; none is taken before all subtasks have ended. May be repeated."""

    token: int


class CheckpointComplete(Message, frozen=True, tag="Complete"):  # the name that is on the wire
    """The decision for `checkpoint` is in the log: commit every transaction up to it. May be repeated."""

    token: int
    checkpoint: int


class CommitGlobally(Message, frozen=True):
    """To slot 0: every subtask of sink `operator` has committed its part up to `checkpoint`; make all of it visible.

    `snapshots`: the sink's part of that checkpoint's manifest; `manifest`: where it is, when it is too large for a
    message. May be repeated."""

    token: int
    checkpoint: int
    operator: str
    snapshots: tuple[OperatorSnapshot, ...] = ()
    manifest: ManifestRef | None = None


class Visible(Message, frozen=True):
    """To every slot: sink `operator`, which has a global committer, shows everything up to `checkpoint`. Repeatable."""

    token: int
    checkpoint: int
    operator: str


class LowestEventTime(Message, frozen=True):
    """Answer to `EventTimeReached`: the lowest watermark that any split of the job allows. The least int64: of a split
    without rows, or a slot that has not told yet; the greatest: no split holds the others back."""

    token: int
    watermark_ms: int


class AbortCheckpoint(Message, frozen=True):
    token: int
    checkpoint: int
    reason: str


class Heard(Message, frozen=True):
    """Answer to a Heartbeat: the coordinator is there. It may have nothing else to say for hours."""


class TryElsewhere(Message, frozen=True):
    """This daemon does not serve the slot's run now: another one leads it, or it is not known yet. Try the next
    address. `reason` names the leader."""

    reason: str


class Shutdown(Message, frozen=True):
    """Leave. `reason` is for the user; `outcome` says how the job ended for this slot."""

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
    """How a sink subtask, or its global committer, is named in figures: "out/0", "out/global"."""
    return f"{operator}/{'global' if subtask == GLOBAL_COMMITTER else subtask}"
