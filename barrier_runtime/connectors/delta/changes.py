"""A Delta table at a version, and the changes of each later version as upserts by key. Blocking.

| the actions of a later version | files with rows from before, from after                                   |
|--------------------------------|---------------------------------------------------------------------------|
| cdc (the change data feed)     | those of the feed: `delete`, `update_preimage`; `insert`, `update_postimage` |
| add, remove, without cdc       | removed files, added files                                                |
| none with a change of data     | none                                                                      |
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.delta.history import ANEW, LARGE_BYTES, ChangeFile, DeltaHistory, paths_of
from barrier_runtime.connectors.parquet_format import read_parquet, read_schema
from barrier_runtime.connectors.source_bases.kept_columns import check_kept
from barrier_runtime.connectors.source_bases.upserts import Part, Upserts
from barrier_runtime.data.values.text_columns import UNFIT, column_of_texts
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore

_KIND = pa.field("_change_type", pa.string())
_BEFORE = pa.array(["delete", "update_preimage"])
_AFTER = pa.array(["insert", "update_postimage"])


class DeltaChanges(DeltaHistory):
    def __init__(self, url: str, store: ObjectStore, key: Sequence[str], where: str) -> None:
        super().__init__(url, store, where)
        self._upserts = Upserts(key, self._read, f"the table {store.url}", where)

    def schema(self) -> pa.Schema:
        return self._upserts.schema(super().schema())

    def files(self, version: int, *, whole: bool) -> Sequence[Part]:
        actions = self._actions(version)
        told = [each.commitInfo for each in actions if each.commitInfo is not None]
        at_ms = next((each.inCommitTimestamp or each.timestamp or 0 for each in told), 0)
        if whole:
            return self._upserts.whole(self._chosen(version, None), at_ms)
        feed = [each.cdc for each in actions if each.cdc is not None]
        if feed:
            return self._upserts.changes(feed, feed, at_ms)
        before = self._chosen(version - 1, paths_of(each.remove for each in actions))
        return self._upserts.changes(before, self._chosen(version, paths_of(each.add for each in actions)), at_ms)

    def size(self, file: Part) -> int:
        return LARGE_BYTES if isinstance(file.file, ChangeFile) else super().size(file.file)

    def rows(self, file: Part, schema: pa.Schema) -> list[pa.RecordBatch]:
        return self._upserts.rows(file, schema)

    def _read(self, file: Any, schema: pa.Schema, before: bool) -> list[pa.RecordBatch]:
        if not isinstance(file, ChangeFile):
            return super().rows(file, schema)
        try:
            data = pa.BufferReader(self._store.get(unquote(file.path)))
        except ObjectNotFound as error:
            raise InvalidJob(
                f"{self._where}: change data of the table {self._store.url} was removed before it was read ({error}): "
                f"keep what a vacuum removes for longer than the longest outage. {ANEW[0].upper()}{ANEW[1:]}"
            ) from error
        stored = pa.schema([field for field in schema if field.name not in file.partitionValues] + [_KIND])
        check_kept(read_schema(data), stored, f"the table {self._store.url}", self._where)
        changes = read_parquet(data, stored)  # in these types: files may have views of text
        rows = changes.filter(pc.is_in(changes[_KIND.name], _BEFORE if before else _AFTER)).combine_chunks()
        columns = [
            rows[field.name].combine_chunks()
            if field.name in stored.names
            else partition_column(file.partitionValues[field.name], field, rows.num_rows, self._where)
            for field in schema
        ]
        return [pa.RecordBatch.from_arrays(columns, schema=schema)]


def partition_column(text: str | None, field: pa.Field, count: int, where: str) -> pa.Array:
    """Column of `count` equal values, parsed from the text in the log.

    Empty text is null, times are in UTC.

    Raises `InvalidJob` for unreadable text.
    """
    kind = field.type
    if not text:  # the format has no empty text
        return pa.nulls(count, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        text = f"{text.removesuffix('Z')}Z"
    try:
        return pa.repeat(column_of_texts(pa.array([text]), kind, trims=False)[0], count)
    except UNFIT as error:
        raise InvalidJob(
            f"{where}: partition column {field.name!r} is {kind}, and the log has the value {text!r} ({error}): read "
            "the table without key="
        ) from error
