"""Data files of an Iceberg table in no snapshot, and their description for a later append.

The description is an Iceberg *manifest*: everything for a commit, in a format that stays readable.
"""

import hashlib
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg.io.pyarrow
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import ArrowProjectionVisitor, ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)
from pyiceberg.table import FileScanTask, Table

_VERSION = 2
_NO_SNAPSHOT = -1
_TAG_BYTES = 6  # of a UUID in a file's name; ten are random
_UUID = re.compile(r"-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.[^/]*$")
_COLUMNS = pa.schema(
    [("manifest", pa.binary()), ("spec", pa.int32()), ("files", pa.int64()), ("rows", pa.int64())],
    metadata={"barrier-runtime.iceberg": "data-files"},
)


@dataclass(frozen=True)
class WrittenFiles:
    manifest: bytes
    spec: int
    files: int
    rows: int


class _KeepingNulls(ArrowProjectionVisitor):  # type: ignore[misc]  # the library is not typed
    """Visitor that keeps null lists and maps of structs, which the library reads and writes as empty."""

    def list(self, list_type: Any, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        return _with_nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(
        self, map_type: Any, map_array: pa.Array | None, keys: pa.Array | None, values: pa.Array | None
    ) -> pa.Array | None:
        return _with_nulls_of(map_array, super().map(map_type, map_array, keys, values))


def _with_nulls_of(given: pa.Array | None, made: pa.Array | None) -> pa.Array | None:
    if given is None or made is None or given.null_count == made.null_count:
        return made
    return pc.if_else(given.is_valid(), made, pa.scalar(None, made.type)).cast(made.type)  # with the ids of the fields


pyiceberg.io.pyarrow.ArrowProjectionVisitor = _KeepingNulls


def name_of(owner: str) -> uuid.UUID:
    """UUID for names of data files; the first bytes identify the owner."""
    return uuid.UUID(bytes=_tag(owner) + os.urandom(16 - _TAG_BYTES))


def is_name_of(owner: str, path: str) -> bool:
    found = _UUID.search(path)
    return found is not None and uuid.UUID(found[1]).bytes.startswith(_tag(owner))


def _tag(owner: str) -> bytes:
    return hashlib.sha256(owner.encode()).digest()[:_TAG_BYTES]


def write_files(table: Table, batches: Sequence[pa.RecordBatch], schema: pa.Schema, owner: str) -> WrittenFiles:
    rows = pa.Table.from_batches(batches, schema=schema)
    files = list(_dataframe_to_data_files(table.metadata, rows, table.io, name_of(owner)))
    spec = table.metadata.spec()
    output = _Memory()
    with write_manifest(_VERSION, spec, table.metadata.schema(), output, _NO_SNAPSHOT, "null") as writer:
        for file in files:
            entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=None, data_file=file)
            writer.add_entry(entry)
    return WrittenFiles(output.content, spec.spec_id, len(files), rows.num_rows)


def joined(table: Table, files: Sequence[DataFile], owner: str) -> list[DataFile]:
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows = scan.to_table([FileScanTask(file) for file in files])
    return list(_dataframe_to_data_files(table.metadata, rows, table.io, name_of(owner)))


def data_files(written: WrittenFiles) -> list[DataFile]:
    manifest = ManifestFile.from_args(
        manifest_path="memory",
        manifest_length=len(written.manifest),
        partition_spec_id=written.spec,
        content=ManifestContent.DATA,
        sequence_number=0,
        min_sequence_number=0,
        added_snapshot_id=_NO_SNAPSHOT,
    )
    return [entry.data_file for entry in manifest.fetch_manifest_entry(_MemoryIO(written.manifest))]


def as_rows(written: WrittenFiles) -> pa.RecordBatch:
    values = [[written.manifest], [written.spec], [written.files], [written.rows]]
    return pa.RecordBatch.from_arrays(
        [pa.array(each, field.type) for each, field in zip(values, _COLUMNS, strict=True)], schema=_COLUMNS
    )


def from_rows(batches: Sequence[pa.RecordBatch]) -> list[WrittenFiles] | None:
    """Descriptions, or None for rows themselves, which earlier releases staged."""
    if not batches or (batches[0].schema.metadata or {}) != _COLUMNS.metadata:
        return None
    return [WrittenFiles(**row) for batch in batches for row in batch.to_pylist()]


class _Memory(OutputFile):  # type: ignore[misc]  # the library is not typed
    def __init__(self) -> None:
        super().__init__("memory")
        self._stream = _Kept()

    @property
    def content(self) -> bytes:
        return self._stream.content

    def __len__(self) -> int:
        return len(self.content)

    def exists(self) -> bool:
        return bool(self.content)

    def to_input_file(self) -> InputFile:
        return _MemoryInput(self.content)

    def create(self, overwrite: bool = False) -> OutputStream:
        return self._stream


class _Kept(BytesIO):
    content = b""

    def close(self) -> None:
        if not self.closed:
            self.content = self.getvalue()
        super().close()


class _MemoryInput(InputFile):  # type: ignore[misc]
    def __init__(self, content: bytes) -> None:
        super().__init__("memory")
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return BytesIO(self._content)


class _MemoryIO(FileIO):  # type: ignore[misc]
    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._content = content

    def new_input(self, location: str) -> InputFile:
        return _MemoryInput(self._content)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError("only read")

    def delete(self, location: Any) -> None:
        raise NotImplementedError("only read")


def paths_of(written: Sequence[WrittenFiles]) -> Iterator[str]:
    for each in written:
        for file in data_files(each):
            yield file.file_path
