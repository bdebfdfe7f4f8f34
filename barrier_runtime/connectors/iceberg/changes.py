"""An Iceberg table at a snapshot, and the changes of each later snapshot as upserts by key. Blocking.

| data files of a later snapshot                               | have rows from    |
|--------------------------------------------------------------|-------------------|
| gone since its parent, or in the parent with other deletes   | before            |
| new since its parent, or now with other deletes              | after             |
| of `replace` (a compaction)                                  | neither           |
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation

from barrier_runtime.connectors.iceberg.history import IcebergHistory
from barrier_runtime.connectors.source_bases.upserts import Part, Upserts


class IcebergChanges(IcebergHistory):
    def __init__(self, name: str, catalog: str, properties: Mapping[str, str], key: Sequence[str], where: str) -> None:
        super().__init__(name, catalog, properties, where)
        self._upserts = Upserts(key, lambda task, schema, _: self._rows_of(task, schema), f"the table {name}", where)

    def schema(self) -> pa.Schema:
        return self._upserts.schema(super().schema())

    def files(self, snapshot: int, *, whole: bool) -> Sequence[Part]:
        told = self._snapshot(snapshot)
        if whole:
            return self._upserts.whole(self._planned(snapshot), told.timestamp_ms)
        if told.summary is not None and told.summary.operation == Operation.REPLACE:
            return []
        before = [] if told.parent_snapshot_id is None else self._planned(told.parent_snapshot_id)
        after = self._planned(snapshot)
        there, then = {_content(task) for task in before}, {_content(task) for task in after}
        return self._upserts.changes(
            [task for task in before if _content(task) not in then],
            [task for task in after if _content(task) not in there],
            told.timestamp_ms,
        )

    def size(self, file: Part) -> int:
        return super().size(file.file)

    def rows(self, file: Part, schema: pa.Schema) -> list[pa.RecordBatch]:
        return self._upserts.rows(file, schema)


def _content(task: FileScanTask) -> tuple[str, frozenset[str]]:
    """Data file and delete files, which together determine the rows."""
    return task.file.file_path, frozenset(each.file_path for each in task.delete_files)
