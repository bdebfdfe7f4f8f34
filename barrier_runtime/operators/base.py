"""Interface between an operator and the subtask that runs it.

One thread at a time calls an instance: first `open` (may block); then, on the slot's loop without blocking, `process`,
`on_watermark`, `on_wall_clock`, `snapshot`, `on_complete` and `on_abort`; `on_end` (once; snapshots go on afterwards);
last `close`.
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
    Drops empty batches, and rows of a side output without readers."""

    __slots__ = ("_main", "_side")

    def __init__(
        self, main: Callable[[Batch], None], side: Mapping[str, Sequence[Callable[[Batch], None]]] | None = None
    ) -> None:
        self._main = main
        self._side = side or {}

    def __call__(self, batch: Batch) -> None:
        if batch.count:
            self._main(batch)

    def watch(self, seen: Callable[[Batch], None]) -> Callable[[], None]:
        """Calls `seen` with each batch of the main output, until a call of the returned function."""
        main = self._main

        def watched(batch: Batch) -> None:
            seen(batch)
            main(batch)

        def end() -> None:
            self._main = main

        self._main = watched
        return end

    def to(self, tag: str, batch: Batch) -> bool:
        """Returns whether the side output has a reader."""
        readers = self._side.get(tag, ())
        if len(batch):
            for reader in readers:
                reader(batch)
        return bool(readers)


class SequentialExecutor(Protocol):
    """Queue of blocking work off the loop, first in, first out. Executors never wait for each other."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Runs `work`, then calls `done(result, error)` on the loop."""
        ...


@dataclass(frozen=True)
class CommitReport:
    """Report of a sink: commits up to `checkpoint` are done, or failed.
    `globally`: the global committer reports for all subtasks.
    """

    checkpoint: int
    attempts: int = 0  # failed
    error: str | None = None  # of the last failed attempt; None: committed
    globally: bool = False


@dataclass(frozen=True)
class SplitPosition:
    """Position of a reader, and number of rows of the split in all generations."""

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
    restored: tuple[OperatorSnapshot, ...]  # own snapshots; after rescaling all that may matter
    open_keyed: Callable[[], "KeyedBackend"]  # restores the keyed state; once, in open()
    executor: SequentialExecutor  # for blocking work, such as a commit
    snapshot_executor: SequentialExecutor  # for blocking work of snapshots, and work that snapshots depend on
    metrics: MetricGroup
    local_dir: Path  # of this incarnation of the subtask
    make_store: Callable[[str], ObjectStore]  # by URL
    job_store: ObjectStore
    call_later: Callable[[float, Callable[[], None]], None]  # seconds; on the loop, so not in open()
    wake: Callable[[], None]  # for room or rows to emit; on the loop, so not in open()
    now_s: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex  # unique across processes
    lineage: str = ""
    log_sha256: str = ""  # hash of the decision log's first record; empty: unknown
    exactly_once: bool = True  # a snapshot holds one moment of all streams
    settled: bool = False  # pending entries of `restored` are known to be visible
    reopened: bool = False  # `restored` comes from a run with sources stopped early; this run reads on
    report_commit: Callable[[CommitReport], None] = _not_a_sink  # on the loop
    wake_from_thread: Callable[[], None] = _no_threads  # as `wake`, from any thread
    new_executor: Callable[[], SequentialExecutor] = _no_threads  # independent of `executor`
    new_awaited_executor: Callable[[], SequentialExecutor] = _no_threads  # the same; `close` waits for running work
    replay: Callable[..., str] = _not_replayed  # command that replays the current row (of a key)
    position: Callable[[], str] = _no_position  # of the chain's source; "" without a source
    at_most_once: bool = False  # sources skip to their end after a failure
    follows_source: bool = False
    written: Callable[[], Mapping[str, SplitPosition]] = _nothing_written  # of a source: see `Operator.written`
    latency_target_s: float = 0.0

    def opened(self) -> None:
        """Releases the restored snapshots."""
        object.__setattr__(self, "restored", ())
        object.__setattr__(self, "open_keyed", _open_already)


def _open_already() -> "KeyedBackend":
    raise ProtocolViolation("keyed state is opened once, in open(): keep what open_keyed() returned")


@dataclass
class Capture:
    """Synchronous part of a snapshot, and the remaining work off the loop.

    `values` and the result of `blocking` are named bytes, restored as `OperatorContext.restored[…].values`. A value
    above `Thresholds.value_bytes` becomes an object, verified before `open`.

    A large value that rarely changes is uploaded once and reused by later checkpoints:

    - `on_stored(objects)` is called on the loop when this checkpoint is decided, before `on_complete` or `completed`,
      with the FileRef of each value that is an object (uploaded or in `stored`). A decision that the slot misses brings
      no call.
    - A later capture may put such a FileRef into `stored`, under any name, in place of the bytes in `values`.
    - Only the objects of the *latest* call may be reused: files of older checkpoints are deleted. Uploads of an
      undecided checkpoint, and everything after `open` until the first decision, must be given as bytes again.
    """

    values: dict[str, bytes] = field(default_factory=dict)
    keyed: "BackendSnapshots | None" = None  # already frozen
    blocking: Callable[[], dict[str, bytes]] | None = None  # runs off the loop; the result is merged into `values`
    # off the loop after `blocking`; each value is stored before the next is made
    parts: Callable[[], Iterator[tuple[str, bytes]]] | None = None
    # already objects; disjoint from `values`
    stored: Mapping[str, FileRef] = field(default_factory=dict)
    on_stored: Callable[[Mapping[str, FileRef]], None] | None = None


class Operator:
    """Base of all operators: stateless, with a single input."""

    def open(self, context: OperatorContext) -> None:
        """Restores state."""

    forwards_watermarks: bool = True  # False: a watermark assigner; upstream watermarks end here
    holds_watermarks: bool = False  # True: `on_watermark` is called, later operators get only `own_watermark`
    # True: first of a chain; takes rows without room, into its snapshot
    takes_rows_before_barriers: bool = False

    takes_positions: bool = False  # `reached` is called; for a sink after a source
    is_own_sink: bool = False  # a sink of this package that calls no users' code on the loop
    is_followed: bool = True  # a later step follows event time row by row: see `graph/event_time`
    # bound by which emitted event times, and the forwarded watermark, lag
    output_delay_ms: int = 0

    @property
    def has_room(self) -> bool:
        """Returns whether the operator takes rows now. Otherwise it wakes the slot once there is room.

        Barriers wait with the rows; a source injects barriers regardless. An operator that `takes_rows_before_barriers`
        gets the rows before a barrier even without room: at most those in the channels' windows.
        """
        return True

    @property
    def unfinished(self) -> bool:
        """Returns whether a chain's first operator has rows to emit without further input.
        Meanwhile the end or idleness of the input is not forwarded; `on_wall_clock` makes progress."""
        return False

    def own_watermark(self) -> int | None:
        """Watermark (ms) after everything emitted, if the operator assigns or holds watermarks.

        Called after each batch, watermark and turn of `on_wall_clock`. Never falls.
        """
        return None

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        raise NotImplementedError

    stops: bool = False  # set by a subtask for its first operator: `process` may stop within a batch

    def take_rest(self) -> Batch | None:
        """Returns the rows before which the last `process` stopped, if the work due there exceeds a turn.

        The subtask processes these rows after `toward` has reached `going_to_ms`.
        """
        return None

    @property
    def going_to_ms(self) -> int | None:
        """Event time (ms) to which the operator still advances, after a restore or a stop of `process`.

        The operator gets no row until `toward` has returned True. None: no such work.
        """
        return None

    def toward(self, watermark_ms: int, emit: Emit) -> bool:
        """Does a turn of `on_watermark`; returns whether the work is finished.

        Until then the subtask repeats the call, and passes neither rows nor later watermarks. Snapshots may come
        between turns.
        """
        self.on_watermark(watermark_ms, emit)
        return True

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        """Emits the results that are complete at `watermark_ms`, before the subtask forwards the watermark."""

    by_clock: bool = True  # False: nothing is ever due by the wall clock

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        """Does a turn of the work due by the wall clock; returns whether any was due.

        Only for the first operator of a chain, which wakes the slot when work is due. `last`: the input has ended, so
        everything due now must be done.
        """
        return False

    def before_barrier(self, emit: Emit) -> None:
        """Emits the rows that must precede a barrier. `snapshot` follows."""

    def reached(self, split: str, at: SplitPosition) -> None:
        """Notes the position up to which this operator has a split's rows, after each batch."""

    def written(self) -> Mapping[str, SplitPosition]:
        """Returns the positions, by split, that all subtasks have written together with rows.
        Called off the loop, when no earlier generation can write; may block."""
        return {}

    def on_end(self, emit: Emit) -> None:
        """Emits the remaining rows at the end of the input (after a watermark of WATERMARK_MAX)."""

    def snapshot(self, checkpoint: int) -> Capture:
        """Captures the state within a few milliseconds, without blocking."""
        return Capture()

    def on_complete(self, checkpoint: int) -> None:
        """`checkpoint` is decided."""

    def on_commit_globally(self, checkpoint: int, read: Callable[[], Sequence[OperatorSnapshot]]) -> None:
        """Commits globally, on subtask 0, after all subtasks have committed up to `checkpoint`.

        `read` returns this operator's part of the manifest; may block, and raise errors of the job's store.
        """

    def on_visible(self, checkpoint: int) -> None:
        """Everything up to `checkpoint` is visible; for sinks with a global committer."""

    def on_abort(self, checkpoint: int) -> None:
        """`checkpoint` will never be decided."""

    def close(self) -> None:
        """Releases local resources. Must not touch anything remote."""

    def closing(self) -> Callable[[], None]:
        """Replaces `close`: runs after the last work on `executor`, possibly never.

        The function should hold little of the operator.
        """
        return self.close
