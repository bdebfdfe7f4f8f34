"""Interface between an operator and the subtask that runs it.

An instance serves one operator and subtask; a single thread calls it. Order of the calls: `open` once (restores state;
may block); any of `process`, `on_watermark`, `on_wall_clock`, `snapshot`, `on_complete` and `on_abort` on the slot's
loop (must not block); `on_end` once at the end of the input (snapshots go on afterwards); `close`.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore

if TYPE_CHECKING:  # declaring a flow loads no backend
    from barrier_runtime.state.backend.backend_snapshots import BackendSnapshots
    from barrier_runtime.state.backend.keyed_backend import KeyedBackend


class Emit:
    """Receiver of results: `emit(batch)` is the main output, `emit.to(tag, batch)` a side output.
    Empty batches and rows of a side output without readers are dropped."""

    __slots__ = ("_main", "_side")

    def __init__(
        self, main: Callable[[Batch], None], side: Mapping[str, Sequence[Callable[[Batch], None]]] | None = None
    ) -> None:
        self._main = main
        self._side = side or {}

    def __call__(self, batch: Batch) -> None:
        if batch.count:
            self._main(batch)

    def to(self, tag: str, batch: Batch) -> bool:
        """Emits to a side output; returns whether the output has a reader."""
        readers = self._side.get(tag, ())
        if len(batch):
            for reader in readers:
                reader(batch)
        return bool(readers)


class SequentialExecutor(Protocol):
    """Queue of blocking work off the loop, first in, first out. Executors never wait for each other."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Runs `work` after all earlier work of this executor, then calls `done(result, error)` on the loop."""
        ...


@dataclass(frozen=True)
class CommitReport:
    """Report of a sink to the coordinator: everything up to `checkpoint` is committed, or the commit failed.
    `globally`: the report comes from the global committer and holds for all subtasks."""

    checkpoint: int
    attempts: int = 0  # failed
    error: str | None = None  # of the last failed attempt; None: committed
    globally: bool = False


@dataclass(frozen=True)
class SplitPosition:
    """Position of a reader, and the number of rows that the split has returned in all generations."""

    rows: int
    position: bytes


def _not_a_sink(report: CommitReport) -> None:
    raise ProtocolViolation(f"only a sink reports commits: {report}")


def _not_replayed(*key: Any) -> str:
    return ""


def _no_position() -> str:
    return ""


def _nothing_written() -> Mapping[str, "SplitPosition"]:
    return {}


def _no_threads() -> Any:
    raise ProtocolViolation("this operator was opened without threads of its own: run it in a slot")


@dataclass(frozen=True)
class OperatorContext:
    job: str
    token: int
    operator: str
    subtask: int
    parallelism: int
    max_parallelism: int
    restored: tuple[OperatorSnapshot, ...]  # own snapshots, or after rescaling all that may matter; () = empty start
    open_keyed: Callable[[], "KeyedBackend"]  # restores the keyed state; once, in open()
    executor: SequentialExecutor  # for blocking work, such as a commit
    snapshot_executor: SequentialExecutor  # runs the blocking parts of snapshots, and work that these depend on
    metrics: MetricGroup
    local_dir: Path  # of this incarnation of the subtask
    make_store: Callable[[str], ObjectStore]  # by URL, for sinks and sources
    job_store: ObjectStore  # of the checkpoints
    call_later: Callable[[float, Callable[[], None]], None]  # seconds; on the loop, so not in open()
    wake: Callable[[], None]  # call after the operator got room or has rows to emit; on the loop, so not in open()
    now_s: Callable[[], float] = time.monotonic  # any steady clock
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex  # unique across processes
    lineage: str = ""  # equal for all generations whose state grew from the same start
    log_sha256: str = ""  # hash of the decision log's first record; empty: unknown
    exactly_once: bool = True  # aligned barriers, or rows in flight in the snapshot: one moment of all streams
    settled: bool = False  # the pending entries of `restored` are known to be visible
    reopened: bool = False  # `restored` comes from a run that stopped its sources early; this run reads on
    report_commit: Callable[[CommitReport], None] = _not_a_sink  # on the loop
    wake_from_thread: Callable[[], None] = _no_threads  # the same as `wake`, callable from any thread
    new_executor: Callable[[], SequentialExecutor] = _no_threads  # independent of `executor`
    new_awaited_executor: Callable[[], SequentialExecutor] = _no_threads  # the same; `close` waits for running work
    replay: Callable[..., str] = _not_replayed  # command that replays the current row (of a key)
    position: Callable[[], str] = _no_position  # position of the chain's source; "" in a chain without a source
    at_most_once: bool = False  # sources skip to their end after a failure
    follows_source: bool = False  # the chain begins with a source
    written: Callable[[], Mapping[str, SplitPosition]] = _nothing_written  # of a source: see `Operator.written`
    latency_target_s: float = 0.0  # see the option

    def opened(self) -> None:
        """Releases the restored snapshots, which may be large."""
        object.__setattr__(self, "restored", ())
        object.__setattr__(self, "open_keyed", _open_already)


def _open_already() -> "KeyedBackend":
    raise ProtocolViolation("keyed state is opened once, in open(): keep what open_keyed() returned")


@dataclass
class Capture:
    """Synchronous part of a snapshot, and the work that remains to be done off the loop.

    `values` and the result of `blocking` are named bytes that the operator finds again in
    `OperatorContext.restored[…].values`. Small values are part of the manifest. A value above `Thresholds.value_bytes`
    is uploaded as a separate object, read back and verified before `open`.

    A large value that rarely changes is uploaded once and reused by later checkpoints:

    - `on_stored(objects)` is called on the loop when this checkpoint is decided (before `on_complete` or `completed`),
      with the FileRef of each value that is an object, uploaded or listed in `stored` (empty without objects). The call
      is missing for a checkpoint that ended undecided, or was decided while the slot was not listening.
    - A later capture may put such a FileRef into `stored`, under any name, in place of the bytes in `values`. A restore
      treats both alike.
    - Only the objects of the *latest* call may be reused: files of older checkpoints are deleted. Uploads of an
      undecided checkpoint are handed over as bytes again, and so is everything after `open` until the first decision.
    """

    values: dict[str, bytes] = field(default_factory=dict)
    keyed: "BackendSnapshots | None" = None  # already frozen
    blocking: Callable[[], dict[str, bytes]] | None = None  # runs off the loop; the result is merged into `values`
    # runs off the loop after `blocking`; yields further values, each stored before the next is made
    parts: Callable[[], Iterator[tuple[str, bytes]]] | None = None
    # values that are already objects; disjoint from `values`
    stored: Mapping[str, FileRef] = field(default_factory=dict)
    on_stored: Callable[[Mapping[str, FileRef]], None] | None = None


class Operator:
    """Base of all operators: stateless, one input, emits nothing of its own accord."""

    def open(self, context: OperatorContext) -> None:
        """Restores state. May block."""

    forwards_watermarks: bool = True  # False: a watermark assigner; upstream watermarks end here
    holds_watermarks: bool = False  # True: `on_watermark` is called, later operators get only `own_watermark`
    # True: takes rows without room, and keeps them in its snapshot; first of a chain
    takes_rows_before_barriers: bool = False

    takes_positions: bool = False  # `reached` is called; for a sink after a source
    is_followed: bool = True  # a later step follows event time row by row: see `graph/event_time`
    # event times of emitted rows lag at most this far behind the watermark; the forwarded watermark lags as much
    output_delay_ms: int = 0

    @property
    def has_room(self) -> bool:
        """Returns whether the operator takes rows now. An operator without room wakes its slot once it has room.
        Barriers wait with the rows; a source injects barriers regardless. An operator that `takes_rows_before_barriers`
        gets the rows before a barrier even without room, at most as many as the channels' windows hold."""
        return True

    @property
    def unfinished(self) -> bool:
        """Returns True while the first operator of a chain has rows to emit without further input.
        Until then the end or idleness of the input is not forwarded; `on_wall_clock` makes progress."""
        return False

    def own_watermark(self) -> int | None:
        """Returns the watermark (ms) after everything emitted; only of operators that assign or hold watermarks.
        Called after each batch, watermark and turn of `on_wall_clock`. The watermark never falls."""
        return None

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        raise NotImplementedError

    stops: bool = False  # set by a subtask for its first operator: `process` may stop within a batch

    def take_rest(self) -> Batch | None:
        """Returns the rows before which the last `process` stopped, because the work due there exceeds a turn.
        The subtask processes these rows after `toward` has advanced event time to `going_to_ms`."""
        return None

    @property
    def going_to_ms(self) -> int | None:
        """Event time (ms) to which the operator is still advancing, after a restore or a stop of `process`.
        The operator gets no row until `toward` has returned True. None: nothing to catch up with."""
        return None

    def toward(self, watermark_ms: int, emit: Emit) -> bool:
        """Does one turn of `on_watermark`. False: not finished.
        Until True the subtask repeats the call, and passes neither a row nor a later watermark. `snapshot` may come
        between two turns; a restored operator then continues to `watermark_ms`."""
        self.on_watermark(watermark_ms, emit)
        return True

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        """Emits the results that are complete at `watermark_ms`; the subtask forwards the watermark afterwards."""

    by_clock: bool = True  # False: nothing is ever due by the wall clock

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        """Does at most one turn of the work due by the wall clock; returns whether there was any.
        The subtask calls the first operator of a chain in each turn; this operator wakes its slot when work is due.
        `last`: the input has ended, so everything due now is done before event time ends."""
        return False

    def before_barrier(self, emit: Emit) -> None:
        """Emits the rows that must precede a barrier. `snapshot` follows."""

    def reached(self, split: str, at: SplitPosition) -> None:
        """Notes the position of a split up to which this operator has all rows, after each batch of the source.
        Only called if the operator `takes_positions`."""

    def written(self) -> Mapping[str, SplitPosition]:
        """Returns the positions, by split, that all subtasks have written together with rows.
        Called off the loop, when no earlier generation can write; may block."""
        return {}

    def on_end(self, emit: Emit) -> None:
        """Emits the remaining rows at the end of the input (after a watermark of WATERMARK_MAX)."""

    def snapshot(self, checkpoint: int) -> Capture:
        """Captures the current state, within microseconds to a few milliseconds, without blocking."""
        return Capture()

    def on_complete(self, checkpoint: int) -> None:
        """`checkpoint` is decided."""

    def on_commit_globally(self, checkpoint: int, read: Callable[[], Sequence[OperatorSnapshot]]) -> None:
        """Commits globally, after all subtasks have committed their parts up to `checkpoint`.
        Called on subtask 0 of a sink with a global committer. `read` returns this operator's part of the manifest; it
        may block, and raise the errors of the job's store."""

    def on_visible(self, checkpoint: int) -> None:
        """Everything up to `checkpoint` is visible; for sinks with a global committer."""

    def on_abort(self, checkpoint: int) -> None:
        """`checkpoint` will never be decided."""

    def close(self) -> None:
        """Releases local resources. Must not touch anything remote."""

    def closing(self) -> Callable[[], None]:
        """Returns the replacement of `close` that runs after the last work on `executor`, possibly never.
        The function should keep as little of the operator alive as possible."""
        return self.close
