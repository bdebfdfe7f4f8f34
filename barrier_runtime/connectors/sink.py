"""The two-phase contract of a sink. Users subclass `TwoPhaseCommitSink`; `sinks/driver` calls it.

The rule: **pre-commit leaves durable data and no handle that can expire.** A committable is plain typed data from which
any process, at any later time, can commit or abort. `commit` is idempotent and "already done" is success; `abort` is
idempotent; committing what was aborted is a hard error.
"""

import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import pyarrow as pa

from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore

Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]


@dataclass(frozen=True)
class SinkContext:
    """Who this sink instance is. `token`, subtask and a sequence number make every staged name unique.

    Within a `lineage` checkpoint ids only rise: a target that remembers (lineage, checkpoint) knows what was committed.
    Another start of the same job begins another lineage, and its ids from 1."""

    job: str
    sink: str
    token: int
    subtask: int
    parallelism: int
    make_store: Callable[[str], ObjectStore]
    job_store: ObjectStore  # where the job's checkpoints are
    lineage: str
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex  # never the same twice, also in other processes
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    log_sha256: str = ""  # hash of the first record of the job's decision log; empty: not known
    known_target: bool = False  # the restored checkpoint is of a sink with the same settings, which has written

    @property
    def where(self) -> str:
        """For messages."""
        return f"job {self.job!r}, sink {self.sink!r}, subtask {self.subtask}"


def check_methods(sink: Any, where: str, schema: pa.Schema | None = None) -> None:
    """Raise `InvalidJob` when `sink`, an instance or a class of sinks, lacks a method that it must have. `schema`: of
    the rows of an instance, if known; `check_columns` of the instance is asked about it."""
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
    """Whether small batches go to `write_few` of sinks of this class."""
    for base in kind.__mro__:
        if "write_few" in vars(base):
            return base is not TwoPhaseCommitSink
        if "write" in vars(base):
            return False
    return False


def commits_parts(sink: "TwoPhaseCommitSink") -> bool:
    """Whether `commit` of `sink` is called. With `commits_only_globally` not, but for a subclass that has a `commit` of
    its own."""
    for base in type(sink).__mro__:
        if "commits_only_globally" in vars(base):
            return not (sink.global_committer and sink.commits_only_globally)
        if "commit" in vars(base):
            break
    return True


def sink_facts(sink: Any) -> dict[str, Any]:
    """What a plan knows of `sink`, a sink or a factory of one with the same attributes."""
    return {
        "guarantee": sink.guarantee,
        "global_committer": getattr(sink, "global_committer", False),
        "commit_every_ms": getattr(sink, "commit_every_ms", 0),
        "describe": repr(sink),
        "sink_kind": getattr(sink, "kind", ""),
        "target": sink.target() if isinstance(sink, TwoPhaseCommitSink) else "",
        "places": tuple(sink.places()) if isinstance(sink, TwoPhaseCommitSink) else (),
    }


class TwoPhaseCommitSink:
    """One instance per sink subtask. `begin_transaction`, `write`, `stage_early` and `encode_early` run on the loop and
    must not block.

    Everything else runs off the loop: `pre_commit` on one thread, `commit`, `abort` and `recover` on another. So a
    commit of an older transaction may run beside the pre-commit of a newer one.
    """

    guarantee: Guarantee = "exactly_once"
    global_committer: bool = False  # True: `commit` shows nothing, `commit_globally` shows the parts of all subtasks
    commits_only_globally: bool = False  # True, with `global_committer`: `commit` has nothing to do and is not called
    commit_every_ms: int = 0  # with `global_committer`: checkpoints of so long are shown by one `commit_globally`
    commits_together: bool = False  # True: `commit_together` costs less than one `commit` after the other
    keeps_rows: bool = False  # True: rows may stay in the sink past the checkpoint that they came before, see `kept`
    most_decided: int | None = None  # set in `open`: how many transactions the target can hold between their decision
    # and their commit; while there are so many the sink is given no rows
    transaction_timeout_ms: int | None = None  # set in `open`: how long the target remembers what is pre-committed and
    # not committed, for the page and its alarm; None: for ever, as where rows stay in the job's store until then
    required_methods: ClassVar[tuple[str, ...]] = (
        "begin_transaction",
        "write",
        "pre_commit",
        "commit",
    )  # to be written
    former_settings: ClassVar[frozenset[str]] = frozenset()  # names in `settings()` of older releases, to be ignored
    kind: ClassVar[str] = ""  # name in `connectors/registry`, to resolve in-doubt transactions without the flow

    def settings(self) -> dict[str, Any]:
        """Keyword arguments (JSON, nothing secret) that make an equal sink; they are kept in every snapshot."""
        return {}

    def target(self) -> str:
        """The name of what this sink writes to, such as a table or a topic, without the address of a server. Snapshots
        keep it: transactions that are still to be committed are not restored into a sink of another target."""
        return ""

    def places(self) -> Sequence[str]:
        """Examples of what this sink writes: a file with its whole path or URL, or `delta:` or `iceberg:` and a table.
        No source of its own rows may read from there."""
        return ()

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        """Raise `InvalidJob` for columns that the target cannot hold. Called when the flow is written, if the columns
        are known then."""

    def open(self, context: SinkContext) -> None:
        """Connect and check the target. Raises `InvalidJob` when it cannot be written. May block."""

    def begin_transaction(self) -> Any:
        """A new transaction. Cheap (called on the loop); nothing visible, nothing external."""
        raise NotImplementedError

    def write(self, transaction: Any, rows: pa.RecordBatch) -> None:
        """Stage rows, invisible to readers."""
        raise NotImplementedError

    def write_few(self, transaction: Any, rows: FewRows) -> None:
        """`write` for a small batch that is there as lists of Python: a sink that need not have each of them in Arrow
        saves making it. Called instead of `write` only where both are of the same class, or this one is of a class
        below: a subclass that has a `write` of its own gets all rows there."""
        self.write(transaction, rows.record_batch())

    def stage_early(self, transaction: Any) -> Callable[[], None] | None:
        """Called after each write. Work to be done off the loop for a transaction that grew too large to keep in memory
        until `pre_commit`, or None. If the work fails, `pre_commit` has to make up for it."""
        return None

    def encode_early(self, transaction: Any) -> Callable[[], None] | None:
        """Called after each write, unless earlier work of this kind is still under way. Work to be done off the loop on
        rows that have come, so that less is left for `pre_commit`, or None. If it raises an error that a person must
        mend, the job ends with the next rows; what else it raises is for `pre_commit` to make up for."""
        return None

    def pre_commit(self, transaction: Any, checkpoint: int) -> bytes | None:
        """Make everything durable; return the committable (encoded, versioned) or None when there is nothing.

        `checkpoint` is the barrier that closed the transaction. Called again with the same transaction if it raised."""
        raise NotImplementedError

    def commit(self, committable: bytes) -> None:
        """Make it visible. Idempotent."""
        raise NotImplementedError

    def commit_together(self, committables: Sequence[bytes]) -> None:
        """Only with `commits_together`, when commits have fallen behind: make several transactions visible, oldest
        first. Idempotent. If it raises, `commit` is called for the oldest of them."""
        for committable in committables:
            self.commit(committable)

    def abort(self, committable: bytes) -> None:
        """Drop it. Idempotent."""
        raise NotImplementedError

    def kept(self, stored: Container[str]) -> Mapping[str, bytes]:
        """Only with `keeps_rows`, behind each `pre_commit` and on its thread: the rows that are in no committable yet,
        as named values for the snapshot. A name means the same bytes for ever; those of names in `stored` are in an
        older snapshot already, and are left out."""
        return {}

    def kept_names(self) -> frozenset[str]:
        """Only with `keeps_rows`: of the values that the last `kept` needs, those that later ones may need again. On
        the loop."""
        return frozenset()

    def restore_kept(self, kept: Sequence[Mapping[str, bytes]], *, moved: bool) -> None:
        """Only with `keeps_rows`, between `open` and `recover`: what the restored snapshot has of each subtask that
        this one follows, all values of all names that `kept` needed. `moved`: at another parallelism, so that newer
        rows of the same keys may come to other subtasks: show these before any newer ones."""
        raise NotImplementedError

    def end_of_input(self) -> None:
        """No rows come any more: the next `pre_commit` keeps none. On the loop."""

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Only with `global_committer`, and only in subtask 0: every subtask has committed its part up to `checkpoint`;
        make all of it visible at once. `committables`: of all subtasks and of all checkpoints that were decided since
        the last call, oldest first, also such as were made visible before. Idempotent."""
        raise NotImplementedError

    def recover(self, decided: Sequence[bytes]) -> None:
        """After a restore: commit every decided committable, then drop what older generations left undecided."""
        for committable in decided:
            self.commit(committable)

    def close(self) -> None:
        """Release local resources only."""


@runtime_checkable
class ReadsBack(Protocol):
    """A sink whose visible rows can be read again and told apart by checkpoint, so that a replay can be compared with
    them. Asked of one that was not opened."""

    def committed_rows(self, job: str, sink: str, after: int, until: int) -> Iterator[str]:
        """A text for each row of the checkpoints behind `after`, up to `until`. Raises `ObjectNotFound` when some of
        it was removed since."""
        ...

    def texts_of(self, batches: Sequence[pa.RecordBatch]) -> Iterator[str]:
        """A text for each of these rows, as it would be read back. Equal rows have equal texts."""
        ...
