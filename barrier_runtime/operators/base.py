"""What an operator is to the subtask that runs it. One instance per operator and subtask; one thread calls it.

Life: `open` once (may block: restores state) → any of `process`, `on_watermark`, `snapshot`, `on_complete`, `on_abort`
on the slot's loop (must not block) → `on_end` once when its input ended (it goes on answering `snapshot`) → `close`.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from barrier_runtime.elements import Batch
from state.keyed_backend import KeyedBackend
from state.object_store import ObjectStore
from state.snapshot import OperatorSnapshot

Emit: TypeAlias = Callable[[Batch], None]


class Lane(Protocol):
    """A first-in first-out line of blocking work, off the loop. One lane never waits for another."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` after all earlier work of this lane; then call `done(result, error)` on the loop."""
        ...


class Reporter(Protocol):
    """How an operator tells the coordinator and the metrics what happened. Called on the loop."""

    def committed(self, checkpoint: int) -> None: ...
    def commit_failing(self, checkpoint: int, attempts: int, error: str) -> None: ...
    def committed_globally(self, checkpoint: int) -> None: ...
    def global_commit_failing(self, checkpoint: int, attempts: int, error: str) -> None: ...
    def count(self, metric: str, amount: float = 1.0) -> None: ...
    def processed_latency(self, emit_ns: int, rows: int) -> None: ...
    def visible_latency(self, emit_ns: int, rows: int) -> None: ...


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
        [], KeyedBackend
    ]  # opens (and restores) this subtask's keyed state; call at most once, in open()
    lane: Lane  # for what may take as long as it likes, as a commit
    snapshot_lane: Lane  # shared with the blocking parts of this operator's snapshots: what they would wait for
    report: Reporter
    local_dir: Path  # private to this incarnation of the subtask
    make_store: Callable[[str], ObjectStore]  # URL -> object store, for sinks and sources
    job_store: ObjectStore  # where the job's checkpoints are
    call_later: Callable[[float, Callable[[], None]], None]  # seconds, on the loop
    wake: Callable[[], None]  # the operator has room again
    now_s: Callable[[], float] = time.monotonic  # any steady clock
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex  # never the same twice, also in other processes
    lineage: str = ""  # the same for all generations whose state grew from one start


@dataclass
class Capture:
    """The synchronous part of a snapshot, and what is still to be done off the loop."""

    values: dict[str, bytes] = field(default_factory=dict)
    keyed: KeyedBackend | None = None  # already frozen
    blocking: Callable[[], dict[str, bytes]] | None = None  # run off the loop; its result is merged into `values`


class Operator:
    """Base of all operators: stateless, one input, forwards nothing by itself."""

    def open(self, context: OperatorContext) -> None:
        """Take what is needed from `context`; restore. May block."""

    forwards_watermarks: bool = True  # False: a watermark assigner; what comes from upstream ends here

    @property
    def has_room(self) -> bool:
        """False: hand over nothing more now; the operator wakes its slot when it has room. Barriers wait with the rows,
        a source injects them all the same."""
        return True

    def own_watermark(self) -> int | None:
        """Watermark assigners only: the watermark (ms) reached so far by what was processed; asked after each batch."""
        return None

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        """Handle one batch from input `port`."""
        raise NotImplementedError

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        """Event time reached `watermark_ms`. Emit what that completes; the watermark itself is forwarded after."""

    def on_end(self, emit: Emit) -> None:
        """No more input. Emit what is left (a watermark of WATERMARK_MAX came before)."""

    def snapshot(self, checkpoint: int) -> Capture:
        """The state at this very moment, in microseconds to few milliseconds; nothing that blocks."""
        return Capture()

    def on_complete(self, checkpoint: int) -> None:
        """`checkpoint` is decided."""

    def on_commit_globally(self, checkpoint: int, snapshots: tuple[OperatorSnapshot, ...]) -> None:
        """Subtask 0 of a sink with a global committer: all subtasks have committed their parts up to `checkpoint`,
        whose manifest holds `snapshots` of this operator."""

    def on_visible(self, checkpoint: int) -> None:
        """A sink with a global committer: everything up to `checkpoint` is visible."""

    def on_abort(self, checkpoint: int) -> None:
        """`checkpoint` will never be decided."""

    def close(self) -> None:
        """Release local resources. Must not touch anything remote."""
