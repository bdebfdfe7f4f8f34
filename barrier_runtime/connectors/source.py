"""Contract of sources (docs/writing-a-source.md): splits, and a seekable reader per split."""

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, runtime_checkable

import pyarrow as pa

from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.source_bases.ranges import PartFetcher
from barrier_runtime.coordinator.metric_table import Counter
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.data.schemas import Duration, Rows


@dataclass(frozen=True)
class Split:
    """Independently read part of a source. Positions are stored under `id`, which is stable across runs."""

    id: str
    payload: bytes = b""  # data for the reader: JSON, never pickle
    size: int | None = None  # bytes of a file: another size shows that the file changed
    of: int | None = None  # number of shares of the rows: with another number, every share has other rows
    formerly: str = ""  # id in snapshots of earlier releases


@dataclass(frozen=True)
class Polled:
    """Rows returned by a poll.

    `emit_ns`: due time of the first row on the clock of `poll`; now for a source without a schedule.
    """

    rows: pa.RecordBatch | FewRows
    emit_ns: int


class SplitReader(Protocol):
    @property
    def finished(self) -> bool:
        """Returns whether `poll` has returned the last row."""
        ...

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        """Returns the available rows, at most `max_rows`; None if there are none. Never waits.

        `now_ns`: wall clock at the begin of the job's generation, then steady; nanoseconds since 1970.
        """
        ...

    def next_due_ns(self) -> int | None:
        """Due time of the next row on the clock of `poll`; None: as soon as possible."""
        ...

    def position(self) -> bytes:
        """Position of the row after the last returned row: small JSON."""
        ...

    def seek(self, position: bytes) -> None: ...

    def close(self) -> None: ...


class Source(Protocol):
    """Source. The driver sends it to the slots, pickled."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def exactly_once(self) -> bool:
        """Returns whether a replay from the same positions yields the same rows."""
        ...

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Lists the splits, once, in the driver. Raises `InvalidJob` for missing or unreadable input."""
        ...

    def reader(self, split: Split) -> SplitReader:
        """Returns a reader of `split`, in the slot's `open` (may block)."""
        ...


@runtime_checkable
class Positioned(Protocol):
    """Source that names the kind of its positions, such as "Kafka": a job continues only with that kind."""

    @property
    def positions_in(self) -> str: ...


@runtime_checkable
class Choosing(Protocol):
    """Source whose settings select splits; a job does not continue with splits no longer selected."""

    def not_chosen(self, split_id: str) -> str:
        """Explains why the settings do not select a split of a snapshot, with the remedy; "" if they do."""
        ...


@runtime_checkable
class Projecting(Protocol):
    def reading(self, columns: Collection[str]) -> Source:
        """Returns a source of the same rows with only `columns`, at least one."""
        ...


@runtime_checkable
class Ending(Protocol):
    """Source that knows whether its rows end. `endless`: waits for new rows for ever."""

    @property
    def endless(self) -> bool: ...


@runtime_checkable
class Pausing(Protocol):
    """Source that knows whether it may pause for a while. Other endless sources count as pausing."""

    @property
    def pauses(self) -> bool: ...


@runtime_checkable
class EndingSplits(Protocol):
    """Endless source whose splits end, as files do: between two splits it is idle, without `idle_timeout` at once."""

    @property
    def splits_end(self) -> bool: ...


@runtime_checkable
class SeveralFiles(Protocol):
    """Source that may read several splits with rows of the same key at the same time, as files of a folder."""

    @property
    def several(self) -> bool: ...


@runtime_checkable
class PassingOver(Protocol):
    """Source whose listing passes over files. `passed_over`: their number, without hidden names."""

    @property
    def passed_over(self) -> int: ...


@runtime_checkable
class Rereading(Ending, Protocol):
    def reads_from(self, place: str) -> bool:
        """True if this source reads from `place`, an element of `TwoPhaseCommitSink.places`."""
        ...


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Arguments of every source description, such as `KafkaSource(…)`.

    `event_time`: a column of timestamps, dates, or int64 milliseconds; None: no watermarks. The watermark of a split is
    the greatest time seen minus `max_out_of_orderness`. A split without rows for `idle_timeout` does not hold back the
    watermark. `max_rows_per_second`: limit of all subtasks together; None: no limit.
    """

    event_time: str | None = None
    max_out_of_orderness: Duration = datetime.timedelta()
    idle_timeout: Duration | None = None
    max_rows_per_second: float | None = None


class SourceOf(SourceSettings, Generic[Rows]):
    """Base of descriptions with a `schema`, for type checkers."""

    def named(self, name: str) -> "Source":
        raise NotImplementedError


@runtime_checkable
class SourceDescription(Protocol):
    """Description of a source without a name, such as `KafkaSource(…)`.

    A flow checks and connects the source when it uses the description, possibly under several names.
    """

    def named(self, name: str) -> Source:
        """Returns the source under its name in a flow. Raises `InvalidJob`."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """Reader with a slow first step."""

    def prepare(self) -> None:
        """Performs the first step off the loop, at most once, after `seek`; `poll` must work without it."""
        ...


@runtime_checkable
class RemoteReader(SplitReader, Preparable, Protocol):
    """Reader whose first step may be a request to a store.

    If `remote`, a thread calls `prepare` before the first `poll`. `prepare` opens the split and fetches the bytes of
    the first `poll`; no other method is called meanwhile.
    """

    @property
    def remote(self) -> bool: ...


@runtime_checkable
class Fetching(Protocol):
    """Reader whose bytes are fetched ahead by threads of the subtask."""

    fetching: bool  # the last `poll` waits for bytes: the split is not idle

    def fetch_by(self, fetcher: PartFetcher) -> None:
        """Sets the fetcher, once, before `seek` and `prepare`. Each answer wakes the subtask."""
        ...


@runtime_checkable
class Waking(Protocol):
    """Reader or discovery whose thread wakes the subtask.

    The thread first makes rows or splits available and then calls `wake`, which ends the wait for `next_due_ns`.
    """

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Sets `wake`, before the first `poll` or `found`. Any thread may call `wake`; the call never blocks."""
        ...


@runtime_checkable
class Backlogged(Protocol):
    def backlog(self) -> int | None:
        """Rows from the position to the last known end; None: unknown. Never waits."""
        ...


@runtime_checkable
class Counting(Protocol):
    def count_by(self, count: Callable[[Counter, int], None]) -> None:
        """Sets the function that counts, before the first `poll`. Only `poll` may call the function."""
        ...


@runtime_checkable
class Gathering(Protocol):
    """Reader whose thread may delay a few rows: a hand-over costs as much as dozens of rows."""

    def gather_for(self, seconds: float) -> None:
        """Sets the job's `latency_target`, once, before the first `poll`; 0: rows never wait."""
        ...


@runtime_checkable
class CheckpointListener(Protocol):
    """Reader that acknowledges rows covered by checkpoints. Must not block.

    A finished reader is notified until a checkpoint after the end is completed, and is then closed.
    """

    def snapshotted(self, checkpoint: int) -> None:
        """Reports that `position()` was taken for `checkpoint`, which may still be aborted."""
        ...

    def completed(self, checkpoint: int) -> None:
        """Reports a decided checkpoint, which covers all earlier checkpoints. Numbers may repeat, and never fall."""
        ...


@runtime_checkable
class MarkingReader(Protocol):
    """Reader of a split that may change after the last row was read."""

    def mark(self) -> int:
        """Returns 24 bits that identify the content of a finished split; 0: unknown. Called once."""
        ...


class Discovery(Protocol):
    """Finds splits while the job runs, in each source subtask.

    Blocking work needs a thread (`connectors/discovery.ListingThread`).
    """

    def found(self) -> Sequence[Split]:
        """Returns new splits of all subtasks: neither returned before nor in `known`. Never blocks.

        Raises `Unavailable` once per failed listing, which is counted and retried, and `InvalidJob` to end the job.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class MarkingDiscovery(Discovery, Protocol):
    def ended(self, split_id: str, size: int | None, mark: int) -> None:
        """Reports that this subtask has read a split completely. Never blocks."""
        ...


@runtime_checkable
class DiscoveringSource(Source, Protocol):
    """Source that gains splits at run time; `splits` may be empty.

    A split that only the snapshot has is recreated from the payload; the reader raises an error if the split has
    disappeared. Listed splits that the snapshot lacks are left to `discovery`, or read if there is no discovery.
    """

    def owner(self, split_id: str, parallelism: int) -> int:
        """Returns the subtask that reads the split: the same in every process."""
        ...

    def discovery(self, known: NameSet) -> Discovery | None:
        """Returns a discovery; None if this configuration ends with the listed splits.

        Called in the slot's `open` (may block). `known`: ids, sizes and marks of all splits that any subtask reads or
        has read; owned by the discovery.
        """
        ...


@runtime_checkable
class FindsAgain(DiscoveringSource, Protocol):
    """Source whose discovery finds unread splits again, also after a restart; snapshots omit such splits."""

    finds_again: bool


@runtime_checkable
class MarkingSource(Source, Protocol):
    """Source whose marks show whether a completely read split has changed."""

    def renewed_marks(self, finished: Sequence[tuple[Split, int]]) -> Sequence[tuple[Split, int]]:
        """Returns splits with new marks, for splits whose mark changed although the content is the same.

        `finished`: completely read splits and marks. Raises `InvalidJob` for other content. May block for a bounded
        time: a later start checks the remaining splits.
        """
        ...


@runtime_checkable
class GrowingSource(Source, Protocol):
    """Source whose ended splits may gain rows later, if `grows`.

    A later run, or a discovery that returns the split once more, continues at the stored end. A missing split is no
    error.
    """

    grows: bool


@runtime_checkable
class RetainingSource(Source, Protocol):
    """Source whose system deletes old rows and can list the retained rows."""

    def no_longer_there(self, positions: Mapping[str, bytes | None]) -> Sequence[str]:
        """Returns a message for each split that has lost rows after the position.

        `positions`: by split id; None: the beginning. Called in the driver; may block, and raise `Unavailable`.
        """
        ...


@dataclass(frozen=True)
class Remaining:
    """Upper bound of the rows and bytes after some positions. None: unknown."""

    rows: int | None = None
    bytes: int | None = None


@runtime_checkable
class MeasuringSource(Source, Protocol):
    def left(self, splits: Sequence[Split], positions: Mapping[str, bytes]) -> Remaining:
        """Returns how much of the unfinished `splits` remains after `positions`, by split id.

        A split without a position counts as a whole. Called in the driver; may block, and raise `Unavailable`.
        """
        ...


@dataclass(frozen=True)
class DeduplicateBy:
    """Deduplication by `column`. `within`: how long a value is remembered; None: for ever."""

    column: str
    within: datetime.timedelta | None


@runtime_checkable
class RedeliveringSource(Source, Protocol):
    """Source that may return rows again after a failure; the flow deduplicates directly after the source."""

    @property
    def deduplicate_by(self) -> DeduplicateBy | None: ...


@dataclass(frozen=True)
class DeadLetters:
    """Division of a source's rows into good rows and undecodable records.

    `error`: column that is null in good rows. `good`: columns of good rows. `dead_letter`: columns of the other stream,
    new name to column.
    """

    error: str
    good: tuple[str, ...]
    dead_letter: Mapping[str, str]


@runtime_checkable
class DeadLetterSource(Source, Protocol):
    """Source that can pass on undecodable records. None: such a record ends the job."""

    @property
    def dead_letters(self) -> DeadLetters | None: ...


@runtime_checkable
class StagedSource(Source, Protocol):
    """Source whose rows the driver copies to storage before the job starts.

    Before `stage`, the description serves only `explain`. A continued job reads the splits of the checkpoint: a
    position refers to the rows of a single staging.
    """

    def stage(self, job: str, storage: str, *, fresh: bool) -> None:
        """Stages the rows, in the driver after all other checks.

        `storage`: URL of the job's checkpoints. Rows staged by an earlier run are reused, unless `fresh` (a start
        without state).
        """
        ...

    def unstage(self, job: str, storage: str) -> None:
        """Deletes the staged rows, in the driver, after the finished job has committed everything."""
        ...
