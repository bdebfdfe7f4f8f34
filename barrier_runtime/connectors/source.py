"""What a source is: splits found by the driver, or also later, and a reader per split with a position that can be
sought.

The subtask polls readers; nothing here may block. A reader's position after `poll` covers exactly the rows returned so
far: restoring it yields the very next row.
"""

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.source_bases.part_fetcher import PartFetcher
from barrier_runtime.coordinator.metric_table import Counter
from barrier_runtime.data.few_rows import FewRows


@dataclass(frozen=True)
class Split:
    """One independently read part of a source. `id` is stable across runs; positions are kept under it."""

    id: str
    payload: bytes = b""  # what the reader needs; the source's own encoding (JSON), never pickle
    size: int | None = None  # bytes of a file: another size shows that it changed after it was read
    of: int | None = None  # it is one of so many shares of the rows: of another number, all are other rows
    formerly: str = ""  # id under which snapshots of earlier releases may know it


@dataclass(frozen=True)
class Polled:
    """`emit_ns`: intended emission time of the first row, on the clock that `poll` is told; now, when the source has no
    schedule."""

    rows: pa.RecordBatch | FewRows
    emit_ns: int


class SplitReader(Protocol):
    @property
    def finished(self) -> bool:
        """True once the last row has been returned by `poll`."""
        ...

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        """What is there now, at most `max_rows` rows; None when nothing is. Never waits. `now_ns`: nanoseconds since
        1970 as the wall clock had it when the job's generation began; steady since, whatever becomes of that clock."""
        ...

    def next_due_ns(self) -> int | None:
        """When the next row is due, on the clock of `poll`, if that is known; None = as soon as possible."""
        ...

    def position(self) -> bytes:
        """Small, serialisable (JSON)."""
        ...

    def seek(self, position: bytes) -> None: ...

    def close(self) -> None: ...


class Source(Protocol):
    """Described in the driver, carried to the slots in Spark's closure."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def exactly_once(self) -> bool:
        """True when positions are stable, so that a replay yields the same rows."""
        ...

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Called once, in the driver. Raises `InvalidJob` for missing or unreadable input."""
        ...

    def reader(self, split: Split) -> SplitReader:
        """Called in the slot, in `open` (may block)."""
        ...


@runtime_checkable
class Positioned(Protocol):
    """A source that says what its positions are positions in, such as "Kafka" or "CSV files". A job does not go on with
    positions in something else. All sources of this package say it."""

    @property
    def positions_in(self) -> str: ...


@runtime_checkable
class Choosing(Protocol):
    """A source whose settings choose what it reads. A job does not go on with splits that they no longer choose."""

    def not_chosen(self, split_id: str) -> str:
        """Why the settings do not choose a split that a snapshot knows, with the remedy; "" if they do."""
        ...


@runtime_checkable
class Projecting(Protocol):
    """A source that can leave out columns, and need not read them."""

    def reading(self, columns: Collection[str]) -> Source:
        """The same rows, of which only these columns are wanted, one or more of its schema."""
        ...


@runtime_checkable
class Rereading(Protocol):
    """A source that knows whether it would read what a sink writes. `endless`: it looks for new rows for ever."""

    @property
    def endless(self) -> bool: ...

    def reads_from(self, place: str) -> bool:
        """`place`: of `TwoPhaseCommitSink.places`."""
        ...


@dataclass(frozen=True, kw_only=True)
class EventTimeOfSource:
    """Base of what users write, such as `KafkaSource(…)`: where a source's event time comes from.

    `event_time`: a column of timestamps, dates, or int64 milliseconds; None: there are no watermarks. They are made per
    split: the greatest time seen minus `max_out_of_orderness`. A split silent for `idle_timeout` is not waited for.
    """

    event_time: str | None = None
    max_out_of_orderness: datetime.timedelta = datetime.timedelta()
    idle_timeout: datetime.timedelta | None = None


@runtime_checkable
class SourceDescription(Protocol):
    """What users write, such as `KafkaSource(…)`: a source without a name. Nothing is checked, and nothing outside is
    looked at, before a flow takes it; one description may be used under several names."""

    def named(self, name: str) -> Source:
        """The source under its name in a flow, which messages tell. Raises `InvalidJob`."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """A reader that can do its slow first step ahead of the first poll."""

    def prepare(self) -> None:
        """Off the loop; at most once, and after `seek`. Not called for every split: `poll` must do without."""
        ...


@runtime_checkable
class RemoteReader(SplitReader, Preparable, Protocol):
    """A reader whose first step may be a request to a store.

    If `remote`, a thread calls `prepare` before the first `poll`, beside that of other splits and whatever the loop
    does; nothing else is called meanwhile. It opens, and fetches what the first `poll` needs.
    """

    @property
    def remote(self) -> bool: ...


@runtime_checkable
class Fetching(Protocol):
    """A reader whose bytes are fetched ahead by the threads of its subtask."""

    fetching: bool  # the last `poll` returned nothing because bytes have not come yet: the split is not idle

    def fetch_by(self, fetcher: PartFetcher) -> None:
        """Called once, before `seek` and `prepare`. The subtask is woken for each answer."""
        ...


@runtime_checkable
class Waking(Protocol):
    """A reader whose rows, or a discovery whose splits, come by a thread: it wakes its subtask when there is something
    to take, and need not be asked again and again meanwhile. Its `next_due_ns` may then be far away.

    The order that loses nothing: what came can be taken first, then `wake` is called.
    """

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Called once, before the first `poll` or `found`. `wake` may be called on any thread and as often as one
        likes: it never blocks, and asks the subtask to look."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A reader that has metrics of its own."""

    def count_by(self, count: Callable[[Counter, int], None]) -> None:
        """Called once, before the first `poll`. Call `count` in `poll` alone: metrics are of the subtask's loop."""
        ...


@runtime_checkable
class Gathering(Protocol):
    """A reader whose thread may let a few rows wait for others, since a turn of it costs as much as dozens of them."""

    def gather_for(self, seconds: float) -> None:
        """Called once, before the first `poll`: the job's `latency_target`; 0: rows never wait."""
        ...


@runtime_checkable
class CheckpointListener(Protocol):
    """A reader that wants to hear of checkpoints, to acknowledge what they cover. Called on the loop: must not block.

    A reader that is finished hears on until a checkpoint after its end is completed, and is closed then.
    """

    def snapshotted(self, checkpoint: int) -> None:
        """`position()` was just taken for `checkpoint`. It may still be given up."""
        ...

    def completed(self, checkpoint: int) -> None:
        """`checkpoint` is decided, and covers the earlier ones, also those given up. May be repeated, never falls."""
        ...


@runtime_checkable
class MarkingReader(Protocol):
    """Of a split that may be changed when it was read to its end (see `MarkingSource`)."""

    def mark(self) -> int:
        """24 bits that tell what the split held; 0: nothing is known. Asked once, when it is `finished`."""
        ...


class Discovery(Protocol):
    """Finds splits while the job runs; one per source subtask, with a thread of its own for what blocks (see
    `connectors/discovery.ListingThread`)."""

    def found(self) -> Sequence[Split]:
        """Splits of all subtasks that it did not return before and that it was not told of. Never blocks.

        Raises `Unavailable` once per listing that failed (it is counted, and the next one tried), `InvalidJob` for what
        ends the job.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class MarkingDiscovery(Discovery, Protocol):
    """It looks whether splits that were read to their end have changed."""

    def ended(self, split_id: str, size: int | None, mark: int) -> None:
        """That split was read to its end by this subtask. Never blocks."""
        ...


@runtime_checkable
class DiscoveringSource(Source, Protocol):
    """A source whose splits become more while it is read.

    `splits` may be empty. A split that a snapshot knows but `splits` does not list is made again from the payload in
    the snapshot, and its reader says what is wrong if it is gone. A split that `splits` lists but that is in no
    snapshot of a job that goes on came later than the checkpoint: it is left to `discovery`, as it would have been
    without the restart (when there is no discovery, it is read as listed).
    """

    def owner(self, split_id: str, parallelism: int) -> int:
        """The subtask that reads the split: the same answer everywhere and always."""
        ...

    def discovery(self, known: NameSet) -> Discovery | None:
        """Called in the slot, in `open` (may block). `known`: ids of the splits that are or were read, by any subtask,
        with their sizes and marks; the discovery's own. None: this configuration does not look for splits, and the
        source ends with those it has."""
        ...


@runtime_checkable
class FindsAgain(DiscoveringSource, Protocol):
    """Its discovery finds a split of which nothing was read as it did before, also after a restart. So such splits need
    no place in a snapshot."""

    finds_again: bool


@runtime_checkable
class MarkingSource(Source, Protocol):
    """Can tell by a mark, which is kept beside the size, whether a split that was read to its end has changed."""

    def renewed_marks(self, finished: Sequence[tuple[Split, int]]) -> Sequence[tuple[Split, int]]:
        """`finished`: splits that were read to their end, with their marks. Those whose mark is another one now though
        they hold the same, with that. Raises `InvalidJob` for one that holds something else. May block, for a bounded
        time: what it does not look into now it does at a later start."""
        ...


@runtime_checkable
class GrowingSource(Source, Protocol):
    """If it `grows`, a split that ended may have more rows later. Its reader's position at the end stays in snapshots;
    a later run, or a discovery that returns the split once more, goes on there. A split that is gone is not missed."""

    grows: bool


@runtime_checkable
class RetainingSource(Source, Protocol):
    """A source whose system drops old rows by itself, and can be asked what is still there."""

    def no_longer_there(self, positions: Mapping[str, bytes | None]) -> Sequence[str]:
        """`positions`: by split id, that of its reader; None: its beginning. A line for people for each split that has
        lost rows behind it. In the driver; may block, and raise `Unavailable`."""
        ...


@dataclass(frozen=True)
class Remaining:
    """How much there is behind some positions, at most. None: in this unit it is not known."""

    rows: int | None = None
    bytes: int | None = None


@runtime_checkable
class MeasuringSource(Source, Protocol):
    """A source that can tell how much of it is still to be read."""

    def left(self, splits: Sequence[Split], positions: Mapping[str, bytes]) -> Remaining:
        """Of `splits`, which were listed just now and have not ended, behind the `positions` of their readers, by split
        id; of one without a position all. In the driver; may block, and raise `Unavailable`."""
        ...


@dataclass(frozen=True)
class DeduplicateBy:
    """`column` tells rows that are given again. `within`: how long a value of it is kept; None: for ever."""

    column: str
    within: datetime.timedelta | None


@runtime_checkable
class RedeliveringSource(Source, Protocol):
    """A source that may give rows again after a failure. The flow deduplicates right behind it; None: it does not."""

    @property
    def deduplicate_by(self) -> DeduplicateBy | None: ...


@dataclass(frozen=True)
class DeadLetters:
    """How good rows and bad records share the rows of one source. `error`: the column that is null in good rows.
    `good`: columns of the stream of good rows; `dead_letter`: of the other stream, new name to column."""

    error: str
    good: tuple[str, ...]
    dead_letter: Mapping[str, str]


@runtime_checkable
class DeadLetterSource(Source, Protocol):
    """A source that can hand on the records that it cannot decode. None: such a record ends the job."""

    @property
    def dead_letters(self) -> DeadLetters | None: ...


@runtime_checkable
class StagedSource(Source, Protocol):
    """A source whose rows are put into storage once, before the job starts, and are then read from there.

    Its description without them is only good for `explain`; `splits` is asked again after `stage`. In a job that goes
    on, the splits that the checkpoint knows are read, whatever is listed: a position is one in the rows of its staging.
    """

    def stage(self, job: str, storage: str, *, fresh: bool) -> None:
        """Called in the driver when all else is checked. `storage`: URL of the job's checkpoints. What an earlier run
        of the job staged is used again, unless this is a `fresh` start, without state."""
        ...

    def unstage(self, job: str, storage: str) -> None:
        """Called in the driver when the job has finished and everything is committed. Deletes the rows."""
        ...
