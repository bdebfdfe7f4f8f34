"""Two-phase commit contract of sinks (docs/writing-a-sink.md). `sinks/driver` calls a sink.

**Pre-commit leaves durable data and no handle that can expire.** With a committable any process can commit or abort
later. Committing an aborted transaction is an error.
"""

import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.operators.base import SplitPosition
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.versioned import Format


def committable_format(version: int, undone: str = "committed") -> Format:
    """JSON format of a committable. `undone`: the verb of the damage message."""
    return Format(
        "{}: a committable",
        version,
        damaged=f"nothing was {undone} or deleted; restore an intact copy of the checkpoint",
    )


Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]
Acknowledgement: TypeAlias = Callable[[], None]  # waits until the target has all earlier rows


@dataclass(frozen=True)
class SinkContext:
    """Identity and environment of a sink instance.

    `token`, subtask and a sequence number make staged names unique. Checkpoint ids only rise within a `lineage`; a new
    start of the job begins a lineage with ids from 1.
    """

    job: str
    sink: str
    token: int
    subtask: int
    parallelism: int
    make_store: Callable[[str], ObjectStore]
    job_store: ObjectStore
    lineage: str
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex  # never repeats, also across processes
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    log_sha256: str = ""  # of the first record of the job's decision log; "" if not known
    known_target: bool = False  # the restored checkpoint is of a sink with the same settings that has written
    restored_subtasks: int = 0  # parallelism of the restored checkpoint; 0: none
    latency_target_s: float = 0.0  # longest wait of rows for other rows

    @property
    def where(self) -> str:
        return f"job {self.job!r}, sink {self.sink!r}, subtask {self.subtask}"


def check_methods(sink: Any, where: str, schema: pa.Schema | None = None) -> None:
    """Raises `InvalidJob` if `sink`, an instance or a class, lacks a required method.

    Of an instance, also checks the columns of a known `schema`.
    """
    kind = sink if isinstance(sink, type) else type(sink)
    missing = [
        name
        for base in kind.__mro__
        for name in vars(base).get("required_methods", ())
        if getattr(getattr(sink, name), "__func__", getattr(sink, name)) is vars(base).get(name)
    ]
    if sink.global_committer and getattr(kind, "commit_globally", None) is TwoPhaseCommitSink.commit_globally:
        missing.append("commit_globally")
    if missing:
        raise InvalidJob(f"{where}: class {kind.__name__} has no method {', '.join(missing)}: add it")
    if schema is not None:
        sink.check_columns(schema, where)


def takes_few(kind: type) -> bool:
    """True if sinks of this class get small batches by `write_few`."""
    for base in kind.__mro__:
        if "write_few" in vars(base):
            return base is not TwoPhaseCommitSink
        if "write" in vars(base):
            return False
    return False


def commits_parts(sink: "TwoPhaseCommitSink") -> bool:
    """True if `sink.commit` is called: also with `commits_only_globally` if a subclass overrides `commit`."""
    for base in type(sink).__mro__:
        if "commits_only_globally" in vars(base):
            return not (sink.global_committer and sink.commits_only_globally)
        if "commit" in vars(base):
            break
    return True


def sink_facts(sink: Any) -> dict[str, Any]:
    return {
        "guarantee": sink.guarantee,
        "global_committer": getattr(sink, "global_committer", False),
        "commit_every_ms": getattr(sink, "commit_every_ms", 0),
        "shows_early": getattr(sink, "writes_at_once", False) or sink.guarantee == "at_least_once",
        "is_idempotent": hasattr(sink, "deterministic"),
        "last_row_wins": getattr(sink, "last_row_wins", False) is True,
        "describe": repr(sink),
        "sink_kind": getattr(sink, "kind", ""),
        "target": sink.target() if isinstance(sink, TwoPhaseCommitSink) else "",
        "places": tuple(sink.places()) if isinstance(sink, TwoPhaseCommitSink) else (),
    }


class TwoPhaseCommitSink:
    """Base class of sinks; each subtask of a sink has an instance.

    `begin_transaction`, `write`, `stage_early`, `stage_now` and `encode_early` run on the loop and must not block.
    Methods without a note run off the loop: `pre_commit` in one thread, `commit`, `abort` and `recover` in another, in
    parallel.
    """

    guarantee: Guarantee = "exactly_once"
    global_committer: bool = False  # True: `commit_globally`, not `commit`, makes rows visible
    commits_only_globally: bool = False  # True, with `global_committer`: `commit` is not called
    commit_every_ms: int = 0  # with `global_committer`: interval of `commit_globally`
    commits_together: bool = False  # True: `commit_together` costs less than consecutive commits
    keeps_rows: bool = False  # True: rows may stay in the sink past the next checkpoint, see `kept`
    takes_positions: bool = False  # True: `reached` and `written` are called (docs/design/at-most-once.md)
    writes_at_once: bool = False  # True: staged rows are visible; `stage_now` stages rows as they arrive
    last_row_wins: bool = False  # True: a row replaces the earlier row of its key, so the order matters
    after_decision: bool = False  # True: the sink gets rows after their decision (`stable` step)
    pause_s: float = 0.0  # with `writes_at_once`: pause after the work of `stage_now`
    most_decided: int | None = None  # set in `open`: transactions that the target can hold between decision
    # and commit; at that number the sink gets no rows
    transaction_timeout_ms: int | None = None  # set in `open`: how long the target keeps a transaction between
    # pre-commit and commit, for the page and its alert; None: for ever
    required_methods: ClassVar[tuple[str, ...]] = (
        "begin_transaction",
        "write",
        "pre_commit",
        "commit",
    )
    former_settings: ClassVar[frozenset[str]] = frozenset()  # names in `settings()` of older releases, to be ignored
    kind: ClassVar[str] = ""  # name in `connectors/registry`, to resolve in-doubt transactions

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of an equal sink, for snapshots: JSON without secrets."""
        return {}

    def target(self) -> str:
        """Name of the table, topic or other target, without the address of a server.

        A sink with another target does not restore pending transactions of a snapshot.
        """
        return ""

    def places(self) -> Sequence[str]:
        """Examples of written places: a full path or URL of a file, or `delta:` or `iceberg:` and a table.

        No source of the sink's own rows may read from them.
        """
        return ()

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raises `InvalidJob` for columns that the target cannot hold; when the flow is written."""

    def open(self, context: SinkContext) -> None:
        """Connects to the target. Raises `InvalidJob` if the target cannot be written. May block."""

    def begin_transaction(self) -> Any:
        """Returns a new transaction. Cheap, without external effects."""
        raise NotImplementedError

    def write(self, transaction: Any, rows: pa.RecordBatch) -> None:
        """Stages rows, invisible to readers."""
        raise NotImplementedError

    def write_few(self, transaction: Any, rows: FewRows) -> None:
        """Stages a small batch as lists of Python values.

        A subclass that overrides only `write` gets all rows by `write`.
        """
        self.write(transaction, rows.record_batch())

    def stage_early(self, transaction: Any) -> Callable[[], Any] | None:
        """Returns work that frees memory of a transaction too large to wait for `pre_commit`, or None.

        Called after each write; the work runs off the loop. `pre_commit` must compensate for failed work.
        """
        return None

    def stage_now(self, transaction: Any) -> Callable[[], Acknowledgement | None] | None:
        """Returns work that writes all rows of `transaction` to the target, or None without rows.

        Called only with `writes_at_once`, after a write or at a barrier. This work and that of `stage_early` run in the
        order of the calls in a separate thread, and are repeated after an error that may pass. The work returns None if
        the target has the rows, else a call that waits for the target.
        """
        return None

    def encode_early(self, transaction: Any) -> Callable[[], None] | None:
        """Returns work on the written rows that leaves less work to `pre_commit`, or None.

        Called after each write, unless earlier such work still runs; the work runs off the loop. An error that needs an
        operator ends the job; for other errors `pre_commit` must compensate.
        """
        return None

    def reached(self, split: str, at: SplitPosition) -> None:
        """Notes the position after the last written rows; `stage_early` writes both or neither.

        Called on the loop, only with `takes_positions` and if the sink follows its source directly.
        """

    def written(self) -> Mapping[str, SplitPosition]:
        """Returns the newest positions that all subtasks of this sink have written, by split.

        Called only with `takes_positions`, off the loop, after every subtask has opened its sink.
        """
        return {}

    def pre_commit(self, transaction: Any, checkpoint: int) -> bytes | None:
        """Makes all rows durable. Returns the committable (encoded, versioned), or None without rows.

        The barrier of `checkpoint` closed the transaction. Repeated after an error.
        """
        raise NotImplementedError

    def commit(self, committable: bytes) -> None:
        """Makes the rows of the committable visible. Idempotent."""
        raise NotImplementedError

    def commit_together(self, committables: Sequence[bytes]) -> None:
        """Makes several transactions visible, oldest first. Idempotent.

        Called only with `commits_together`. After an error, `commit` is called for the oldest.
        """
        for committable in committables:
            self.commit(committable)

    def abort(self, committable: bytes) -> None:
        """Drops the rows of the committable. Idempotent."""
        raise NotImplementedError

    def kept(self, stored: Container[str]) -> Mapping[str, bytes]:
        """Returns the rows that no committable contains yet, as named values for the snapshot.

        Called only with `keeps_rows`, after each `pre_commit` in the same thread. A name stands for the same bytes for
        ever; names in `stored` are omitted.
        """
        return {}

    def kept_names(self) -> frozenset[str]:
        """Names of the values of the last `kept` that later calls may need. Called on the loop."""
        return frozenset()

    def restore_kept(self, kept: Sequence[Mapping[str, bytes]], *, moved: bool) -> None:
        """Restores kept rows between `open` and `recover`, only with `keeps_rows`.

        `kept`: all values of each subtask that this subtask follows. `moved`: the parallelism has changed, and other
        subtasks may get newer rows of the same keys: the restored rows must become visible first.
        """
        raise NotImplementedError

    def end_of_input(self) -> None:
        """Announces the end of the rows: the next `pre_commit` must keep none. Called on the loop."""

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Makes the parts of all subtasks visible together. Idempotent.

        Called only with `global_committer`, in subtask 0, after every subtask has committed up to `checkpoint`.
        `committables`: those decided since the last call, oldest first; some may be visible already.
        """
        raise NotImplementedError

    def recover(self, decided: Sequence[bytes]) -> None:
        """Commits all of `decided` after a restore, then drops undecided rows of older generations."""
        for committable in decided:
            self.commit(committable)

    def close(self) -> None:
        """Releases local resources only."""


@runtime_checkable
class ReadsBack(Protocol):
    """Unopened sink whose visible rows can be compared with a replay."""

    def committed_rows(self, job: str, sink: str, after: int, until: int) -> Iterator[str]:
        """Yields a text for each row of the checkpoints after `after`, up to `until`.

        Raises `ObjectNotFound` if rows were removed since.
        """
        ...

    def texts_of(self, batches: Sequence[pa.RecordBatch]) -> Iterator[str]:
        """Yields the text that each row has when read back."""
        ...
