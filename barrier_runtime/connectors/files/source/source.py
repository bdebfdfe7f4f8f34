"""Descriptions of file sources, and the source of folders in which files appear.

A seen file with another size, or a completely read file with other content, ends the job; with `on_change="append"`
files may grow. Files are read roughly by time of change and name.

Every subtask lists the folder and reads a share of the files, by name. Against a second reading, 19 bytes per file
(`name_set`) stay for ever.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.discovery import ListingThread
from barrier_runtime.connectors.files.source.files import FileOrder, Files, OnChange
from barrier_runtime.connectors.files.source.listing import FoundFile, find_arrivals
from barrier_runtime.connectors.files.source.reader import COMPARED_AT_START, may_have_changed, renewed_mark
from barrier_runtime.connectors.name_set import UNKNOWN_SIZE, NameSet
from barrier_runtime.connectors.source import Discovery, Remaining, Source, SourceOf, Split, SplitReader
from barrier_runtime.data.schemas import Duration, Rows, SchemaLike, SchemaOf, as_schema, milliseconds
from barrier_runtime.state.errors import InvalidJob

_SIZES_PER_POLL = 10_000  # known local files that a listing checks for changes, in turn


@dataclass(frozen=True)
class FileSource(SourceOf[Rows], ABC):
    """Base of the sources of files. `ParquetSource` documents the fields."""

    paths: str | Sequence[str]
    _: KW_ONLY
    schema: SchemaOf[Rows] | None = None
    pace: float | None = None
    watch: Duration | None = None
    on_change: OnChange = "fail"
    file_order: FileOrder | None = None

    @abstractmethod
    def files(self, name: str, schema: pa.Schema | None, *, watched: bool) -> Files:
        """Returns the existing files as a source of their format."""

    def named(self, name: str) -> Source:
        """Source with the listed files. Raises `InvalidJob` for missing or unfitting files."""
        schema = as_schema(self.schema, f"source {name!r}") if self.schema is not None else None
        files = self.files(name, schema, watched=self.watch is not None)
        if self.file_order is not None:
            files.read_in_order(self.file_order, watched=self.watch is not None)
        return files if self.watch is None else WatchedFiles(files, _period_s(self.watch, name))


@dataclass(frozen=True)
class GuessingSource(FileSource[Rows]):
    """Base of `CsvSource` and `JsonlSource`.
    `types`: types of some columns, as in `schema`; the others are guessed.
    """

    types: SchemaLike | None = None

    def declared(self, name: str) -> pa.Schema | None:
        """Raises `InvalidJob`."""
        if self.types is None:
            return None
        where = f"source {name!r}"
        if self.schema is not None:
            raise InvalidJob(
                f"{where}: schema= says the types of all columns, and types= of some, with the rest guessed: leave one "
                "out"
            )
        return as_schema(self.types, where, "types")


def _period_s(watch: Duration, name: str) -> float:
    period_ms = milliseconds(watch, f"watch of source {name!r}")
    if period_ms < 1:
        raise InvalidJob(f"source {name!r}: watch={watch!r}: give the time between two looks, at least a millisecond")
    return period_ms / 1000


class WatchedFiles:
    """`inner`: made with `watched=True`. `period_s`: between listings."""

    exactly_once = True
    finds_again = True
    endless = True
    splits_end = True

    def __init__(self, inner: Files, period_s: float) -> None:
        self._inner = inner
        self._period_s = period_s
        self.positions_in, self.grows, self.schema = inner.positions_in, inner.grows, inner.schema

    def __repr__(self) -> str:
        return f"{self._inner!r}, and new ones every {self._period_s:g} s"

    @property
    def passed_over(self) -> int:
        return self._inner.passed_over

    @property
    def several(self) -> bool:
        return not self._inner.is_one_file and not self.in_turn

    @property
    def in_turn(self) -> bool:
        return self._inner.in_turn

    def turn(self, split: Split) -> tuple[int, str, str]:
        return self._inner.turn(split)

    def reading(self, columns: Collection[str]) -> "WatchedFiles":
        return WatchedFiles(self._inner.reading(columns), self._period_s)

    def reads_from(self, place: str) -> bool:
        return self._inner.reads_from(place)

    def splits(self, parallelism: int) -> Sequence[Split]:
        return self._inner.splits(parallelism)

    def reader(self, split: Split) -> SplitReader:
        return self._inner.reader(split)

    def left(self, splits: Sequence[Split], positions: Mapping[str, bytes]) -> Remaining:
        return self._inner.left(splits, positions)

    def owner(self, split_id: str, parallelism: int) -> int:
        return 0 if self.in_turn else zlib.crc32(split_id.encode()) % parallelism

    def discovery(self, known: NameSet) -> Discovery | None:
        arrivals = _Arrivals(self._inner, known)
        return ListingThread(arrivals.list, known, self._period_s, self._inner.where, again=self.grows)


class _Arrivals:
    """Lists new and grown files. The listing thread adds them to `seen`."""

    def __init__(self, source: Files, seen: NameSet) -> None:
        self._source = source
        self._seen = seen
        self._looks = 0
        self._compared = 0

    def list(self) -> list[Split]:
        self._looks += 1
        self._compared = 0
        every = 1 + len(self._seen) // _SIZES_PER_POLL

        def skips(id: str) -> bool:
            return (zlib.crc32(id.encode()) + self._looks) % every != 0 and id in self._seen

        def new() -> Sequence[FoundFile]:
            files = find_arrivals(self._source.paths, self._source.suffixes, self._source.where, skips)
            return [file for file in files if self._is_new(file)]

        found = self._source.in_order(new(), new) if self._source.in_turn else new()
        return [file.split() for file in found]

    def _is_new(self, file: FoundFile) -> bool:
        known = self._seen.find(file.id)
        if known is None and file.former and file.former in self._seen:
            file = msgspec.structs.replace(file, id=file.former)
            known = self._seen.find(file.id)
        if known is None:
            return True
        size, mark = known
        if self._source.grows and (size == UNKNOWN_SIZE or size < file.size):
            return True
        if size == UNKNOWN_SIZE:
            self._seen.add(file.id, file.size)
        elif size != file.size:
            raise InvalidJob(
                f"{self._source.where}: the file {file.url} had {size} bytes when it was first seen and has "
                f"{file.size} now: files must be complete when they appear; write under a name that begins with '_' "
                "and rename into place. To go on, bring the old file back; put new rows into a file of another name"
            )
        elif may_have_changed(mark, file) and self._compared < COMPARED_AT_START:
            self._compared += 1
            self._seen.add(file.id, size, renewed_mark(mark, file, self._source.where))
        return False
