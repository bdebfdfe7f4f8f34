"""Bases of keyed operators: lifecycle of their state, and binding to columns."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.data.keys import KeyCodec
from barrier_runtime.data.plain_rows import plain_schema
from barrier_runtime.operators.base import Capture, Operator, OperatorContext
from barrier_runtime.operators.keyed.progress import (
    COLUMNS,
    VALUE,
    Floor,
    Floors,
    Progress,
    StateColumns,
    check_same,
    columns_of,
    columns_to_bind,
    keys_said,
    restored_columns,
    restored_progress,
    schema_bytes,
    schema_of,
)
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.columns.stored_rows import other_columns
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import DEFINITION, KEYS


class KeyedLife(Operator):
    name: str
    backend: KeyedBackend

    def __init__(self) -> None:
        self._watermark_ms = WATERMARK_MIN
        self._floors: Floors | None = None  # while a key group is ahead of the watermark
        self._emit_ns = 0
        self._opened = False

    def _restore_progress(self, context: OperatorContext) -> Progress:
        self.context = context
        self.metrics = context.metrics
        self.backend = context.open_keyed()
        self._opened = True
        groups = self.backend.key_group_first, self.backend.key_group_last
        progress = restored_progress(context.restored, self.name, *groups, reopened=context.reopened)
        self._watermark_ms = progress.watermark_ms
        self._floors = Floors(progress.floors, context.max_parallelism) if progress.floors else None
        self._emit_ns = progress.emit_ns
        return progress

    def _floors_to_store(self) -> tuple[Floor, ...]:
        return () if self._floors is None else self._floors.above(self._watermark_ms)

    def on_complete(self, checkpoint: int) -> None:
        self.backend.snapshots.completed(checkpoint)

    def on_abort(self, checkpoint: int) -> None:
        self.backend.snapshots.aborted(checkpoint)

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self.backend.close()

    def _floors_by_key(self, rows: pa.RecordBatch, keys: Sequence[str]) -> npt.NDArray[np.int64] | None:
        """After rescaling: event time of each row's key group; None: the watermark for all rows."""
        if self._floors is None:
            return None
        if not self._floors_to_store():
            self._floors = None
            return None
        return self._floors.watermarks([rows.column(key) for key in keys], self._watermark_ms)

    def _watermarks_by_key(self, batch: Batch, keys: Sequence[str]) -> npt.NDArray[np.int64] | None:
        """The same, independent of the cuts of batches."""
        reached, floors = batch.reached, None if self._floors is None else self._floors_by_key(batch.rows, keys)
        if reached is None or not len(reached) or reached[-1] <= self._watermark_ms:
            return floors
        return np.maximum(reached, self._watermark_ms if floors is None else floors)


class KeyedOperator(KeyedLife):
    kind = "keyed operator"
    namespaces: ClassVar[Mapping[str, int]] = {}  # state -> number of key parts after the user's key; missing: none
    made_of_tables = False  # True: the first state holds entries as users write them, not rows
    definition = ""  # see `OperatorSpec`

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        columns: Sequence[str],
        schema: pa.Schema | None,
        more: Sequence[str] = (),
    ) -> None:
        """`columns`: those that the state depends on, keys included. `schema`: of the input, if known.
        `more`: columns that may differ in the program's next version."""
        super().__init__()
        self.name = name
        self.where = f"{self.kind} {name!r}"
        self._key_columns = tuple(keys)
        self._columns = (*columns, *more)
        self._fixed = len(columns)
        self._declared = schema
        self._seen: pa.Schema | None = None
        self._bound: pa.Schema | None = None
        self._bound_bytes = b""
        self._state_columns: tuple[str, ...] = ()
        self._state_types: dict[str, str] = {}
        self._going_to_ms: int | None = None
        self._timers_from_ms: Mapping[str, int] = {}

    def open(self, context: OperatorContext) -> None:
        progress = self._restore_progress(context)
        self._state_columns = progress.state_columns
        self._state_types = restored_columns(context.restored, self.name)
        self._going_to_ms = progress.going_to_ms
        self._timers_from_ms = progress.timers_from_ms
        if progress.schema:
            stored = plain_schema(schema_of(progress.schema))  # older releases kept dictionary types
            self._bind(self._restored_columns(stored))
        if self._declared is not None:
            self._accept(self._declared)

    def snapshot(self, checkpoint: int) -> Capture:
        self.backend.snapshots.freeze(checkpoint)
        progress = Progress(
            self._watermark_ms,
            self._emit_ns,
            self._bound_bytes,
            floors=self._floors_to_store(),
            state_columns=self._state_columns,
            going_to_ms=self._going_to_ms,
            timers_from_ms=self._timers_from_ms,
        )
        values = {VALUE: progress.encode()}
        if self._bound is not None:
            values[KEYS] = keys_said(self._bound, self.state_keys).encode()
            if self._state_columns:
                values[COLUMNS] = StateColumns(tuple(self._state_types.items())).encode()
        if self.definition:
            values[DEFINITION] = self.definition.encode()
        return Capture(values=values, keyed=self.backend.snapshots)

    @property
    def state_keys(self) -> tuple[str, ...]:
        return self._key_columns

    @property
    def column_types(self) -> dict[str, str]:
        """Types of the columns that the state depends on, if known before rows arrive."""
        known = pa.schema([]) if self._declared is None else plain_schema(self._declared)
        return {column: str(known.field(column).type) for column in self._columns if column in known.names}

    @property
    def key_schema(self) -> pa.Schema:
        assert self._bound is not None, "no row came, and the flow does not tell the columns"
        return pa.schema([self._bound.field(name) for name in self.state_keys])

    def bind_without_rows(self, keys: pa.Schema) -> None:
        """Opens the state tables before any row.
        `keys`: key columns, for unknown input columns. Raises `InvalidJob` if the state depends on further columns."""
        if self._bound is not None:
            return
        missing = [column for column in self._columns if column not in keys.names]
        if missing:
            raise InvalidJob(
                f"{self.where}: its state depends on the type of column {missing[0]!r}, which the flow does not tell: "
                "give schema= to the step before it"
            )
        self._bind(columns_of(keys, self._columns, self.where))

    def _check(self, schema: pa.Schema) -> None:
        if schema is not self._seen:
            if self._seen is None or not schema.equals(self._seen):
                self._accept(schema)
            self._seen = schema

    def _accept(self, schema: pa.Schema) -> None:
        columns = columns_of(schema, self._columns, self.where)
        if self._bound is None:
            self._bind(columns)
        else:
            check_same(columns, self._bound, self.where)
        self.on_input_schema(schema)

    def _restored_columns(self, stored: pa.Schema) -> pa.Schema:
        return columns_to_bind(self._columns, self._fixed, stored, self._declared, self.where)

    def _bind(self, columns: pa.Schema) -> None:
        self._bound = columns
        self._bound_bytes = schema_bytes(columns)
        self.codec = KeyCodec(columns, self._key_columns, self.where)
        self.bind(columns)

    def _row_floors(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        return self._floors_by_key(rows, self._key_columns)

    def _row_watermarks(self, batch: Batch) -> npt.NDArray[np.int64] | None:
        return self._watermarks_by_key(batch, self._key_columns)

    def _column_table(
        self,
        name: str,
        columns: Mapping[str, tuple[str, Any]],
        added: Collection[str],
        evictable: bool = False,
        by_last: bool = False,
        in_slices: bool = False,
    ) -> ColumnTable:
        """Returns the operator's only columnar table (see `KeyedBackend.column_table`).

        Converts restored rows with other columns, or another order. Raises `InvalidJob` for state of a release that did
        not store the types of columns.
        """
        types = {column: np.dtype(kind).str for column, (kind, _) in columns.items()}
        before: dict[str, str] | None = None
        if self._state_types:
            before = self._state_types if list(self._state_types.items()) != list(types.items()) else None
        elif self._state_columns:  # of a release that stored only names of columns
            if not types.keys() - set(added) <= set(self._state_columns) <= types.keys():
                raise other_columns(self.name, name, ", ".join(self._state_columns))
            stored = {column: types[column] for column in self._state_columns}
            before = stored if [column for column in types if column in stored] != list(stored) else None
        self._state_types, self._state_columns = types, tuple(types)
        width = len(self._key_columns)
        return self.backend.column_table(name, columns, width, evictable, added, before, by_last, in_slices)

    def _known_columns(self) -> frozenset[str]:
        return frozenset(self._state_types or self._state_columns)

    def bind(self, columns: pa.Schema) -> None:
        """Opens the state tables, once: at `open` if types are known, else at the first batch."""

    def on_input_schema(self, schema: pa.Schema) -> None:
        """Notes the input's schema."""
