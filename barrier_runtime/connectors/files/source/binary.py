"""Source of whole files."""

import datetime
from dataclasses import KW_ONLY, dataclass
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.files.source.files import Files
from barrier_runtime.connectors.files.source.listing import ANY_NAME, FoundFile, open_file
from barrier_runtime.connectors.files.source.reader import FilePosition, FileReader
from barrier_runtime.connectors.files.source.source import FileSource
from barrier_runtime.connectors.source_bases.ranges import NotThere, RangesFile
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.rows import Row
from barrier_runtime.state.errors import InvalidJob, Unavailable

BINARY = pa.schema(
    [("path", pa.string()), ("modified", pa.timestamp("us", "UTC")), ("length", pa.int64()), ("content", pa.binary())]
)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_STEP_BYTES = 1 << 20
_MOST_BYTES = 256 << 20
_LARGE_BYTES = 4 << 20  # a larger file is copied on a thread


@kinds_checked
@dataclass(frozen=True)
class BinarySource(FileSource[Row]):
    """Whole files, a row each: images, PDFs, messages; see `ParquetSource`.

    Columns: `path`, `modified` (time of the last change), `length` in bytes, `content`. `schema` may name some of them,
    and columns of the folders above; without `content` files are not read. `suffixes`: endings that are read in
    folders, such as `(".png", ".jpg")`; default: all. `content` may have 256 MiB; between slots a row may have 64 MiB.
    """

    _: KW_ONLY
    suffixes: tuple[str, ...] = ANY_NAME

    def files(self, name: str, schema: pa.Schema | None, *, watched: bool) -> Files:
        if isinstance(self.suffixes, str) or not all(isinstance(each, str) for each in self.suffixes):
            raise InvalidJob(
                f"source {name!r}: suffixes={self.suffixes!r}: give a tuple of endings, as ('.png', '.jpg')"
            )
        return BinaryFiles(self, name, schema, watched=watched)


class BinaryFiles(Files):
    kind = "binary"

    def __init__(self, about: BinarySource, name: str, schema: pa.Schema | None, *, watched: bool) -> None:
        self.suffixes = tuple(about.suffixes) or ANY_NAME
        if schema is None and watched:  # later files may have more columns in folders
            schema = BINARY
        super().__init__(name, about.paths, schema, about.pace, watched=watched, on_change=about.on_change)
        self._check_types()

    def _check_types(self) -> None:
        for file in self.files[:1] or [FoundFile("", "", 0)]:
            for field in self.schema_in(file):
                if field.name not in BINARY.names or field.type != BINARY.field(field.name).type:
                    there = ", ".join(f"{each.name}: {each.type}" for each in BINARY)
                    raise InvalidJob(
                        f"{self.where}: column {field.name!r} ({field.type}) is none of a whole file: use some of "
                        f"{there}"
                    )

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> FileReader:
        return WholeFileReader(self.where, file, self.schema_in(file), rows_per_second)

    def guess(self, file: FoundFile) -> pa.Schema:
        return BINARY


class WholeFileReader(FileReader):
    """Reads a step of a file per turn."""

    def __init__(self, where: str, file: FoundFile, schema: pa.Schema, rows_per_second: float | None) -> None:
        super().__init__(where, file, schema, rows_per_second)
        self._raw: Any = None
        self._content = bytearray()
        self._given = False

    def open(self) -> None:
        if self._raw is None and not self._given:
            if "content" in self.schema.names and self.file.size > _MOST_BYTES:
                raise InvalidJob(
                    f"{self.where}: it has {self.file.size} bytes, and a row may have {_MOST_BYTES}: leave the file "
                    "out, or leave out the column content with schema="
                )
            self._raw = open_file(self.file, self.where, fetcher=self.fetcher)

    def ready(self) -> bool:
        if self.at_end() or "content" not in self.schema.names:
            return True
        left = self.file.size - len(self._content)
        if left:
            if isinstance(self._raw, RangesFile) and not self._raw.there(len(self._content), min(left, _STEP_BYTES)):
                raise NotThere
            try:
                data = bytes(self._raw.read_at(min(left, _STEP_BYTES), len(self._content)))
            except OSError as error:
                raise Unavailable(f"{self.where}: it cannot be read now: {error}") from error
            if not data:
                raise InvalidJob(
                    f"{self.where}: it had {self.file.size} bytes and ends after {len(self._content)} now: files must "
                    "not change while they are read; write to a new file and rename it into place"
                )
            self._content += data
            if isinstance(self._raw, RangesFile):
                self._raw.has_read(len(self._content))
        return len(self._content) == self.file.size

    def next_chunk(self) -> pa.RecordBatch | None:
        row = self.made_aside(self._row) if len(self._content) > _LARGE_BYTES else self._row()
        self._content = bytearray()
        self._given = True
        return row

    def _row(self) -> pa.RecordBatch:
        values = {
            "path": self.file.path,
            "modified": _EPOCH + datetime.timedelta(microseconds=self.file.modified_ns // 1_000),
            "length": self.file.size,
            "content": bytes(self._content),
        }
        return pa.RecordBatch.from_pylist([{name: values[name] for name in self.schema.names}], schema=self.schema)

    def at_end(self) -> bool:
        return self._given

    def go_to(self, position: FilePosition) -> None:
        self._given = position.row > 0

    def raw(self) -> Any:
        return self._raw

    def close_file(self) -> None:
        if self._raw is not None:
            self._raw.close()
