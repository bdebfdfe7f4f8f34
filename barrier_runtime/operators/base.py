"""What an operator is to the subtask that runs it. One instance per operator and subtask; one thread calls it.

Life: `open` once (may block: restores state) → any of `process`, `on_watermark`, `on_wall_clock`, `snapshot`,
`on_complete`, `on_abort` on the slot's loop (must not block) → `on_end` once when its input ended (it goes on answering
`snapshot`) → `close`.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore

if TYPE_CHECKING:  # a flow that is only written down loads no backend
    from barrier_runtime.state.backend.backend_snapshots import BackendSnapshots
    from barrier_runtime.state.backend.keyed_backend import KeyedBackend


class Emit:
    """Where an operator's results go: `emit(batch)` is its main output, `emit.to(tag, batch)` a side output. Rows of a
    side output that nobody reads are dropped, and batches without rows go nowhere."""

    __slots__ = ("_main", "_side")

    def __init__(
        self, main: Callable[[Batch], None], side: Mapping[str, Sequence[Callable[[Batch], None]]] | None = None
    ) -> None:
        """`side`: by tag, those who read it."""
        self._main = main
        self._side = side or {}

    def __call__(self, batch: Batch) -> None:
        if batch.count:
            self._main(batch)

    def to(self, tag: str, batch: Batch) -> bool:
        """Whether anybody reads it."""
        readers = self._side.get(tag, ())
        if len(batch):
            for reader in readers:
                reader(batch)
        return bool(readers)


class SequentialExecutor(Protocol):
    """A first-in first-out line of blocking work, off the loop. One executor never waits for another."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` after all earlier work of this executor; then call `done(result, error)` on the loop."""
        ...


@dataclass(frozen=True)
class CommitReport:
    """A sink to the coordinator: everything up to `checkpoint` is committed, or (`error`) could not be yet.

    `globally`: by the global committer, for all subtasks.
    """

    checkpoint: int
    attempts: int = 0  # that failed
    error: str | None = None  # of the last one
    globally: bool = False


def _not_a_sink(report: CommitReport) -> None:
    raise ProtocolViolation(f"only a sink reports commits: {report}")


def _not_replayed(*key: Any) -> str:
    return ""


def _no_position() -> str:
    return ""


def _no_threads() -> Any:
    raise ProtocolViolation("this operator was opened without threads of its own: run it in a slot")


@dataclass(frozen=True)
class OperatorContext:
    """All an operator may know of where it runs."""

    job: str
    token: int
    operator: str
    subtask: int
    parallelism: int
    max_parallelism: int
    restored: tuple[OperatorSnapshot, ...]  # own snapshots, or all that may matter when rescaled; () = start empty
    open_keyed: Callable[
        [], "KeyedBackend"
    ]  # opens (and restores) this subtask's keyed state; call at most once, in open()
    executor: SequentialExecutor  # for what may take as long as it likes, as a commit
    snapshot_executor: (
        SequentialExecutor  # shared with the blocking parts of this operator's snapshots: what they would wait for
    )
    metrics: MetricGroup
    local_dir: Path  # private to this incarnation of the subtask
    make_store: Callable[[str], ObjectStore]  # URL -> object store, for sinks and sources
    job_store: ObjectStore  # where the job's checkpoints are
    call_later: Callable[[float, Callable[[], None]], None]  # seconds; on the loop, so not in open()
    wake: Callable[[], None]  # the operator has room again, or something to give; the same
    now_s: Callable[[], float] = time.monotonic  # any steady clock
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex  # never the same twice, also in other processes
    lineage: str = ""  # the same for all generations whose state grew from one start
    log_sha256: str = ""  # hash of the decision log's first record; empty: not known
    exactly_once: bool = (
        True  # a snapshot is of one moment of all streams: barriers are aligned, or rows in flight in it
    )
    settled: bool = False  # what `restored` lists as pending is known to be visible
    reopened: bool = False  # `restored` is of a run that ended its sources early, and this one reads on
    report_commit: Callable[[CommitReport], None] = _not_a_sink  # on the loop
    wake_from_thread: Callable[[], None] = _no_threads  # as `wake`, from any thread
    new_executor: Callable[[], SequentialExecutor] = _no_threads  # one more as `executor`, beside it
    replay: Callable[..., str] = _not_replayed  # the command that meets the row at hand (of a key) again
    position: Callable[[], str] = _no_position  # where the source of its chain is; "" where it is in none
    latency_target_s: float = 0.0  # most that rows wait for others; see the option

    def opened(self) -> None:
        """The operator is open: what it was restored from, which may be large, is not kept any longer."""
        object.__setattr__(self, "restored", ())
        object.__setattr__(self, "open_keyed", _open_already)


def _open_already() -> "KeyedBackend":
    raise ProtocolViolation("keyed state is opened once, in open(): keep what open_keyed() returned")


@dataclass
class Capture:
    """The synchronous part of a snapshot, and what is still to be done off the loop.

    `values` and what `blocking` returns are named values: bytes that the operator finds again, under the same names, in
    `OperatorContext.restored[…].values`. Small ones stand in the manifest. Each that is above `Thresholds.value_bytes`
    is uploaded as an object of its own, which the operator never sees: it is read back and verified before `open`.

    A large value that rarely changes need not be uploaded again for each checkpoint. It is reused as a database's
    immutable files are:

    - `on_stored(objects)` is called on the loop when this very checkpoint is decided (before `on_complete` or
      `completed`), with the FileRef of each of its values that is an object: what was uploaded, and what was in
      `stored`. It is called (with nothing, if there are none) for each checkpoint whose capture has it, except one
      that ended undecided or was decided while the slot did not hear.
    - A later capture may then put such a FileRef into `stored`, under its name or another one, in place of the bytes in
      `values`. At a restore it is a value like any other.
    - Only what the *latest* call said may be reused: each call replaces what the calls before it said, because files
      of older checkpoints are deleted. What an undecided checkpoint uploaded is handed over as bytes again.
    - Nothing is reused across `open`: a restored operator hands over bytes until its first checkpoint is decided.

    So for a set of sorted runs: `values` has the runs for which there is no FileRef yet and the tail that changes,
    `stored` the runs that the latest call of `on_stored` named; a run that is merged away is simply not named any more.
    """

    values: dict[str, bytes] = field(default_factory=dict)
    keyed: "BackendSnapshots | None" = None  # already frozen
    blocking: Callable[[], dict[str, bytes]] | None = None  # run off the loop; its result is merged into `values`
    stored: Mapping[str, FileRef] = field(default_factory=dict)  # values that are objects already; none of `values`
    on_stored: Callable[[Mapping[str, FileRef]], None] | None = None


class Operator:
    """Base of all operators: stateless, one input, forwards nothing by itself."""

    def open(self, context: OperatorContext) -> None:
        """Take what is needed from `context`; restore. May block."""

    forwards_watermarks: bool = True  # False: a watermark assigner; what comes from upstream ends here
    holds_watermarks: bool = False  # True: `on_watermark` hears of them; what follows, of `own_watermark` alone
    takes_rows_before_barriers: bool = False  # True: also without room, and has them in its snapshot; first of a chain

    is_followed: bool = True  # a step behind follows event time row by row: see `graph/event_time`
    output_delay_ms: int = 0  # event times of its rows may be that much behind the watermark: so is what is forwarded

    @property
    def has_room(self) -> bool:
        """False: hand over nothing more now; the operator wakes its slot when it has room. Barriers wait with the rows,
        a source injects them all the same. Rows that stand before a barrier are handed over without room where the
        operator `takes_rows_before_barriers`; no more than the channels' windows hold, until it has room again."""
        return True

    @property
    def unfinished(self) -> bool:
        """The first operator of a chain has rows that will go out without any more input. Until then neither the end
        of the input nor that it is idle is told to what follows; `on_wall_clock` brings it on."""
        return False

    def own_watermark(self) -> int | None:
        """Of operators that assign or hold watermarks: the watermark (ms) behind all that was emitted; asked after each
        batch, watermark and turn of `on_wall_clock`. It never falls."""
        return None

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        """Handle one batch from input `port`."""
        raise NotImplementedError

    stops: bool = False  # set by a subtask for its first operator: `process` may stop within a batch

    def take_rest(self) -> Batch | None:
        """The rows before which the last `process` stopped, because more was due there than fits into a slice of time.
        They are to be given to it again when `toward` has brought event time to `going_to_ms`."""
        return None

    @property
    def going_to_ms(self) -> int | None:
        """Event time that the operator is on its way to, since before the last restore or since `process` stopped.
        No row is to be given to it until `toward` has said True. None: it is where it should be."""
        return None

    def toward(self, watermark_ms: int, emit: Emit) -> bool:
        """Do a slice of what `on_watermark` does. False: call it again, and give no row nor a later watermark before;
        `snapshot` may be called between two slices, and what is restored then knows where it was going to."""
        self.on_watermark(watermark_ms, emit)
        return True

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        """Event time reached `watermark_ms`. Emit what that completes; the watermark itself is forwarded after."""

    by_clock: bool = True  # False: nothing will ever be due by the wall clock

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        """Do what is due by the wall clock, no more than a slice of it; True if there was something. The first operator
        of a chain is asked in each turn, and wakes its slot for one when something will be due. `last`: the input has
        ended: do all that is due now, before event time ends."""
        return False

    def before_barrier(self, emit: Emit) -> None:
        """A barrier goes on now, and `snapshot` follows: emit what has to be in front of it."""

    def on_end(self, emit: Emit) -> None:
        """No more input. Emit what is left (a watermark of WATERMARK_MAX came before)."""

    def snapshot(self, checkpoint: int) -> Capture:
        """The state at this very moment, in microseconds to few milliseconds; nothing that blocks."""
        return Capture()

    def on_complete(self, checkpoint: int) -> None:
        """`checkpoint` is decided."""

    def on_commit_globally(self, checkpoint: int, read: Callable[[], Sequence[OperatorSnapshot]]) -> None:
        """Subtask 0 of a sink with a global committer: all subtasks have committed their parts up to `checkpoint`.
        `read` gives what its manifest holds of this operator; it may block and fail as the job's store may."""

    def on_visible(self, checkpoint: int) -> None:
        """A sink with a global committer: everything up to `checkpoint` is visible."""

    def on_abort(self, checkpoint: int) -> None:
        """`checkpoint` will never be decided."""

    def close(self) -> None:
        """Release local resources. Must not touch anything remote."""

    def closing(self) -> Callable[[], None]:
        """What is called instead of `close` once the last work on `executor` has ended, which may be never: it
        should hold no more of the operator than it needs."""
        return self.close
