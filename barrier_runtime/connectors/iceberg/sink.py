"""Exactly-once into an Iceberg table: one snapshot per checkpoint, over all subtasks.

Rows wait in the job's storage until the checkpoint is decided; then subtask 0 appends them in one commit that carries
the checkpoint (`iceberg/table`), so the table itself tells whether it was made: by us, by a zombie, or by nobody. No
file is below the table's location before it belongs to a snapshot, so there is nothing for its maintenance to find.
Compaction and the expiry of snapshots are the user's business.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.iceberg.columns import as_stored, check_fits, stored_schema
from barrier_runtime.connectors.iceberg.table import IcebergTable
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.decided_batch import BatchingSink, DecidedBatch
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.object_store import ObjectNotFound
from barrier_runtime.state.store.urls import without_credentials

_SECRET = ("token", "credential", "secret", "password", "access-key")


class IcebergSink(BatchingSink):
    """`table`: "namespace.table", made with the columns of the first rows when there is none; an existing one, also a
    partitioned one, must have them with the same types. Times are kept to the microsecond.

    `catalog`: its name; `properties`: what pyiceberg is to know of it (`type`, `uri`, `warehouse`), over what it finds
    under that name in the environment (`PYICEBERG_CATALOG__<NAME>__…`), where secrets belong.
    `max_bytes_in_memory`: Arrow bytes of one open transaction of one subtask before they are staged early. The rows of
    one checkpoint must fit into the memory of one slot.
    """

    kind = "iceberg"

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        max_bytes_in_memory: int = 32 << 20,
    ) -> None:
        super().__init__(max_bytes_in_memory=max_bytes_in_memory)
        if "." not in table.strip("."):
            raise InvalidJob(f"IcebergSink: table {table!r} has no namespace: write 'namespace.table'")
        self.table = table
        self.catalog = catalog
        self.properties = dict(properties or {})
        for name, value in self.properties.items():
            if any(part in name.lower() for part in _SECRET):
                raise InvalidJob(
                    f"IcebergSink: property {name!r} is a secret, and a sink's settings are stored with the job's "
                    "state: set it in the environment (PYICEBERG_CATALOG__<NAME>__…) of every slot"
                )
            if "://" in value:
                without_credentials(value, f"property {name!r} of IcebergSink")

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"

    def settings(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "catalog": self.catalog,
            "properties": self.properties,
            "max_bytes_in_memory": self.max_bytes_in_memory,
        }

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._table = IcebergTable(self.table, self.catalog, self.properties, self._where)
        self._there = self._table.columns()
        self._required = frozenset(f.name for f in self._there or () if not f.nullable)

    def check_schema(self, schema: pa.Schema) -> None:
        stored = stored_schema(schema, self._where)
        if self._there is not None:
            check_fits(stored, self._there, self._where, self.table)

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        stored = stored_schema(batches[0].schema, self._where)
        try:
            return [as_stored(batch, stored, self._required, self._where) for batch in batches]
        except pa.ArrowInvalid as error:
            raise InvalidJob(f"{self._where}: rows cannot be kept as {stored}: {error}") from error

    def deliver_batch(self, batch: DecidedBatch) -> None:
        if self._table.has(batch.application, batch.checkpoint):
            return
        try:
            rows = [each for staged in batch.objects for each in self._read(staged)]
        except ObjectNotFound as error:
            if self._table.has(batch.application, batch.checkpoint):
                return
            raise Corrupt(
                f"{self._where}: {batch.rows} decided rows of checkpoint {batch.checkpoint} are gone, and the table "
                f"{self.table} does not have them ({error}). Were they aborted, moved or deleted? Restore the object "
                "from a backup; the commit is tried again"
            ) from error
        self._table.append(batch.application, batch.checkpoint, rows[0].schema, iter(rows))
