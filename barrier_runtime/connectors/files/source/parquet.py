"""Source of Parquet files, read by row groups, only the wanted columns.

The position is a row number. From a store, the wanted columns of several row groups are fetched ahead together.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime.connectors.files.source.files import Files
from barrier_runtime.connectors.files.source.listing import FoundFile, open_file
from barrier_runtime.connectors.files.source.reader import ROWS_PER_CHUNK, DecodedAhead, FilePosition, FileReader
from barrier_runtime.connectors.files.source.remote import is_remote
from barrier_runtime.connectors.files.source.source import FileSource
from barrier_runtime.connectors.parquet_format import Int96Columns, int96_columns, open_parquet
from barrier_runtime.connectors.source_bases.ranges import NotThere, RangesFile
from barrier_runtime.data import plain_rows
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import Rows, fit
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.texts import counted

_READ_BYTES = 1 << 16  # of a read of a local column
_CHUNK_BYTES = 8 << 20
_LARGE_BYTES = 16 << 20  # of a column chunk; decoded on a thread
_LOOKED_AT = 8
_WINDOW_BYTES = 4 << 20  # least size of row groups fetched together
_PART_BYTES = 4 << 20  # of a request
_AHEAD_BYTES = 32 << 20  # requested beyond the row groups that are decoded
_GAP_BYTES = 128 << 10  # unwanted bytes between columns, up to which requests are joined
_BEHIND_BYTES = 128  # Arrow reads beyond a column chunk of old parquet-mr


@kinds_checked
@dataclass(frozen=True)
class ParquetSource(FileSource[Rows]):
    """Parquet files by paths, folders (read recursively) or patterns (docs/files.md); a split per file.
    Local or in a cloud (`s3://`, `gs://`, `abfss://`, `webhdfs://`).

    `schema` names the columns to read (default: all columns of the first file). `pace`: rows per second over all files;
    default: as fast as possible. `watch`: period of the endless search for new files; existing files are read first.
    Files must be complete when they appear: rename them into place; names that begin with `.` or `_` are ignored. A
    file that changes after reading began ends the job (docs/guarantees.md). `file_order="name"` or "modified" (time of
    change): a single subtask reads the files one after another, in that order; default: side by side.

    >>> flow.source("orders", ParquetSource("s3://lake/orders", watch=timedelta(seconds=10)), event_time="at")
    """

    def files(self, name: str, schema: pa.Schema | None, *, watched: bool) -> Files:
        return ParquetFiles(name, self.paths, schema, self.pace, watched=watched, on_change=self.on_change)


class ParquetFiles(Files):
    kind = "Parquet"
    suffixes = (".parquet", ".pq")

    _whole: pa.Schema | None = None

    def reading(self, columns: Collection[str]) -> "ParquetFiles":
        part = copy(self)
        part._whole, part.schema = self.schema, pa.schema([field for field in self.schema if field.name in columns])
        return part

    def schema_in(self, file: FoundFile) -> pa.Schema:
        if self._whole is None:
            return super().schema_in(file)
        whole = self._not_in_folders(self._whole, file)
        part = pa.schema([field for field in whole if field.name in self.schema.names])
        return part if len(part) else pa.schema([whole.field(0)])  # needed for the number of rows

    def check(self) -> None:
        for file in self.checked_in_driver:
            wanted = self._not_in_folders(self._whole or self.schema, file)
            check_columns(_footer_schema(file, self.where), wanted, f"{self.where}, file {file.url}")

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> FileReader:
        def found(where: str, names: Sequence[str]) -> None:
            if self.leaves_column_out(where, names, self._whole or self.schema):
                reader.leaves_out()

        wanted = self._not_in_folders(self._whole or self.schema, file)
        reader = ParquetReader(self.where, file, self.schema_in(file), rows_per_second, found, wanted)
        return reader

    def guess(self, file: FoundFile) -> pa.Schema:
        return plain_schema(_footer_schema(file, self.where))


@dataclass(frozen=True)
class _Window:
    groups: list[int]
    ranges: list[tuple[int, int]]

    @property
    def size(self) -> int:
        return sum(end - start for start, end in self.ranges)


class ParquetReader(FileReader):
    """`wanted`: columns that the file must have, even unread; default: `schema`.
    `found` gets the names of file and columns.
    """

    def __init__(
        self,
        where: str,
        file: FoundFile,
        schema: pa.Schema,
        rows_per_second: float | None,
        found: Callable[[str, Sequence[str]], None] = lambda where, names: None,
        wanted: pa.Schema | None = None,
    ) -> None:
        super().__init__(where, file, schema, rows_per_second)
        self._wanted = wanted or schema
        self._found = found
        self._raw: Any = None
        self._opened: pq.ParquetFile | None = None
        self._int96: Int96Columns | None = None
        self._ranges: RangesFile | None = None
        self._windows: Iterator[_Window] = iter(())
        self._planned: deque[_Window] = deque()
        self._chunks: Iterator[pa.RecordBatch] = iter(())
        self._ahead = DecodedAhead(self._decode)
        self._skip = 0
        self._decoded = 0  # rows returned as chunks, from the beginning of the file
        self._rows = 0
        self._rows_at_once = ROWS_PER_CHUNK
        self._large = False

    def open(self) -> None:
        if self._opened is not None:
            return
        raw = self._raw = open_file(self.file, self.where, fetcher=self.fetcher)
        if isinstance(raw, RangesFile):
            self._ranges, raw = raw, pa.PythonFile(raw, mode="r")
        try:
            buffered = 0 if is_remote(self.file.url) else _READ_BYTES
            self._opened = open_parquet(raw, pre_buffer=False, buffer_size=buffered)
        except (pa.ArrowInvalid, OSError) as error:
            raise corrupt(self.where, error) from error
        check_columns(self._opened.schema_arrow, self._wanted, self.where)
        self._found(self.where, self._opened.schema_arrow.names)
        if int96 := int96_columns(self._opened) & set(self.schema.names):
            self._int96 = Int96Columns(raw, int96, self.schema, self.where)
        self._rows = self._opened.metadata.num_rows
        self._start_at(self.row)

    def next_chunk(self) -> pa.RecordBatch | None:
        try:
            chunk = self._next_of_window()
            while chunk is None and self._begin_window():
                chunk = self._next_of_window()
        except (pa.ArrowInvalid, OSError) as error:
            raise corrupt(f"{self.where}, after row {self._decoded}", error) from error
        if chunk is None:
            self._check_that_all_came()
            return None
        self._decoded += chunk.num_rows
        if not self._large:
            self.decode_next(self._ahead, _CHUNK_BYTES)
        return chunk

    def _check_that_all_came(self) -> None:
        """Detects a truncated file, of which Arrow reads nothing, without an error."""
        if self._decoded < self._rows:
            raise InvalidJob(
                f"{self.where}: it had {counted(self._rows, 'row')} and ends after row {self._decoded} now: files must "
                "not change while they are read; write to a new file and rename it into place"
            )

    def _next_of_window(self) -> pa.RecordBatch | None:
        return self.made_aside(self._decode) if self._large else self._ahead.take()

    def _decode(self) -> pa.RecordBatch | None:
        chunk = next(self._chunks, None)
        return None if chunk is None else fit(chunk, self.schema, self.where)

    def at_end(self) -> bool:
        return self._decoded >= self._rows

    def go_to(self, position: FilePosition) -> None:
        if self._opened is not None:
            self._ahead.close()
            self._start_at(position.row)

    def raw(self) -> Any:
        return self._raw

    def close_file(self) -> None:
        self._ahead.close()
        self._chunks = iter(())
        if self._opened is not None:
            self._opened.close(force=True)
        if self._raw is not None:
            self._raw.close()

    def _start_at(self, row: int) -> None:
        assert self._opened is not None
        metadata, group, first = self._opened.metadata, 0, 0
        while group < metadata.num_row_groups and first + metadata.row_group(group).num_rows <= row:
            first += metadata.row_group(group).num_rows
            group += 1
        self._decoded, self._skip = row, row - first
        groups = list(range(group, metadata.num_row_groups))
        self._rows_at_once = self._rows_per_chunk(groups)
        self._windows = iter([_Window(groups, [])]) if self._ranges is None else self._windows_of(groups)
        self._planned.clear()
        self._chunks = iter(())

    def request_first(self) -> None:
        if self._ranges is not None and self._plan():
            self._ranges.request(self._planned[0].ranges, needed=False, most=_PART_BYTES)

    def _begin_window(self) -> bool:
        """Returns False without further row groups. Raises `NotThere` until the bytes have arrived."""
        if not self._plan():
            return False
        window = self._planned[0]
        if self._ranges is not None:
            self._ranges.keep(range for each in self._planned for range in each.ranges)
            if not self._ranges.request(window.ranges, needed=True, most=_PART_BYTES):
                raise NotThere
            for later in list(self._planned)[1:]:
                if not self._ranges.request(later.ranges, needed=False, most=_PART_BYTES):
                    break
            if self.fetcher is not None and not self._ranges.have(window.ranges):
                raise NotThere
        self._planned.popleft()
        self._large = any(self._is_large(group) for group in _sample(window.groups))
        self._chunks = self._from(window.groups)
        return True

    def _plan(self) -> bool:
        ahead = sum(window.size for window in self._planned)
        while not self._planned or ahead - self._planned[0].size < _AHEAD_BYTES:
            window = next(self._windows, None)
            if window is None:
                break
            self._planned.append(window)
            ahead += window.size
        return bool(self._planned)

    def _windows_of(self, groups: Sequence[int]) -> Iterator[_Window]:
        assert self._opened is not None
        paths = [self._opened.schema.column(number).path for number in range(len(self._opened.schema.names))]
        wanted = [number for number, path in enumerate(paths) if self._is_wanted(path)]
        behind = _BEHIND_BYTES if "parquet-mr" in str(self._opened.metadata.created_by) else 0
        window = _Window([], [])
        for group in groups:
            about = self._opened.metadata.row_group(group)
            window.groups.append(group)
            window.ranges.extend(_joined(_place(about.column(number), self.file.size, behind) for number in wanted))
            if window.size >= _WINDOW_BYTES:
                yield window
                window = _Window([], [])
        if window.groups:
            yield window

    def _is_large(self, group: int) -> bool:
        assert self._opened is not None
        about = self._opened.metadata.row_group(group)
        columns = (about.column(number) for number in range(about.num_columns))
        return any(
            each.total_uncompressed_size > _LARGE_BYTES and self._is_wanted(each.path_in_schema) for each in columns
        )

    def _is_wanted(self, path: str) -> bool:
        """True if the leaf is part of a wanted column; names may contain dots."""
        return any(path == name or path.startswith(f"{name}.") for name in self.schema.names)

    def _from(self, groups: list[int]) -> Iterator[pa.RecordBatch]:
        assert self._opened is not None
        rows = self._rows_at_once
        chunks = self._opened.iter_batches(rows, row_groups=groups, columns=self.schema.names, use_threads=False)
        for chunk in chunks if self._int96 is None else self._int96.checked(chunks, rows, groups):
            if self._skip >= chunk.num_rows:
                self._skip -= chunk.num_rows
            elif self._skip:
                skip, self._skip = self._skip, 0
                yield chunk.slice(skip)
            else:
                yield chunk

    def _rows_per_chunk(self, groups: list[int]) -> int:
        assert self._opened is not None
        wanted, widest = set(self.schema.names), 1.0
        for group in _sample(groups):
            about = self._opened.metadata.row_group(group)
            columns = (about.column(number) for number in range(about.num_columns))
            size = sum(each.total_uncompressed_size for each in columns if each.path_in_schema.split(".")[0] in wanted)
            widest = max(widest, size / max(1, about.num_rows))
        return max(1, min(ROWS_PER_CHUNK, int(_CHUNK_BYTES / widest)))


def _sample(groups: list[int]) -> list[int]:
    return groups[:: -(-len(groups) // _LOOKED_AT) or 1]


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins near column chunks (start, end) up to `_PART_BYTES`."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if found and (
            start < found[-1][1] or (start <= found[-1][1] + _GAP_BYTES and end - found[-1][0] <= _PART_BYTES)
        ):
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _place(column: Any, size: int, behind: int) -> tuple[int, int]:
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    return start, min(size, start + column.total_compressed_size + behind)


def _footer_schema(file: FoundFile, where: str) -> pa.Schema:
    raw = open_file(file, where)
    try:
        with open_parquet(pa.PythonFile(raw, mode="r") if isinstance(raw, RangesFile) else raw) as opened:
            return opened.schema_arrow
    except (pa.ArrowInvalid, OSError) as error:
        raise corrupt(f"{where}, file {file.url}", error) from error
    finally:
        raw.close()


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Omits metadata, dictionary types and views of text."""
    return plain_rows.plain_schema(pa.schema([(field.name, field.type) for field in schema]))


def check_columns(found: pa.Schema, wanted: pa.Schema, where: str) -> None:
    counts = Counter(found.names)
    for field in wanted:
        if not counts[field.name]:
            raise InvalidJob(
                f"{where}: it has no column {field.name!r} (it has {', '.join(found.names)}): "
                "correct schema=, or read this file as a source of its own"
            )
        if counts[field.name] > 1:
            raise InvalidJob(f"{where}: it has two columns {field.name!r}: rename one of them, and write the file anew")
        kind = found.field(field.name).type
        if not kind.equals(field.type) and not _widens(kind, field.type):
            raise InvalidJob(
                f"{where}: column {field.name!r} is {kind}, wanted is {field.type}: "
                "correct schema=, or convert the file"
            )


def _widens(kind: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    kind, wanted = (_plain_type(each) for each in (kind, wanted))
    if kind.equals(wanted) or types.is_null(kind):
        return True
    if types.is_struct(kind) and types.is_struct(wanted):
        found, names = {field.name: field.type for field in kind}, {field.name for field in wanted}
        return found.keys() == names and all(_widens(found[field.name], field.type) for field in wanted)
    if types.is_integer(kind):
        return bool(types.is_integer(wanted) or types.is_floating(wanted))
    if types.is_floating(kind):
        return bool(types.is_floating(wanted) and wanted.bit_width >= kind.bit_width)
    if types.is_timestamp(kind):
        return bool(types.is_timestamp(wanted) and (wanted.tz is None) == (kind.tz is None))
    if types.is_date32(kind):
        return bool(types.is_date(wanted))
    text = (types.is_string, types.is_large_string)
    raw = (types.is_binary, types.is_large_binary)
    families = (text, raw, (types.is_time,), (types.is_duration,), (types.is_decimal,))
    return any(any(f(kind) for f in family) and any(f(wanted) for f in family) for family in families)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return plain_rows.plain_schema(pa.schema([("value", kind)])).field(0).type


def corrupt(where: str, error: Exception) -> Exception:
    if isinstance(error, OSError) and not isinstance(error, pa.ArrowException) and error.errno is not None:
        return Unavailable(f"{where}: it cannot be read now: {error}")
    said = str(error).rstrip(". \n")
    return InvalidJob(f"{where}: it is not (or no longer) valid Parquet: {said}. Replace or remove the file")
