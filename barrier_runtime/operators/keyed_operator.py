"""What all keyed operators share: one keyed backend, the watermark, and binding to the columns they depend on."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.data.keys import KeyCodec
from barrier_runtime.data.plain_rows import plain_schema
from barrier_runtime.operators.base import Capture, Operator, OperatorContext
from barrier_runtime.operators.keyed_progress import (
    COLUMNS,
    VALUE,
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
from barrier_runtime.state.columns.column_table import ColumnTable, other_columns
from barrier_runtime.state.snapshots.snapshot import DEFINITION, KEYS


class KeyedOperator(Operator):
    """Base of the stateful operators after `key_by`."""

    kind = "keyed operator"
    definition = ""  # see `OperatorSpec`

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        columns: Sequence[str],
        schema: pa.Schema | None,
        more: Sequence[str] = (),
    ) -> None:
        """`columns`: all columns that the state depends on, keys included, and `more` those that may be others in the
        next version of the program. `schema`: of the input, when known."""
        self.name = name
        self.where = f"{self.kind} {name!r}"
        self._key_columns = tuple(keys)
        self._columns = (*columns, *more)
        self._fixed = len(columns)
        self._declared = schema
        self._seen: pa.Schema | None = None  # the input's schema, once a batch came
        self._bound: pa.Schema | None = None  # the columns the state depends on
        self._bound_bytes = b""
        self._state_columns: tuple[str, ...] = ()
        self._state_types: dict[str, str] = {}  # of the columns, where it is known
        self._watermark_ms = WATERMARK_MIN
        self._floors: Floors | None = None  # while a key group is ahead of the watermark
        self._emit_ns = 0
        self._going_to_ms: int | None = None  # event time is on its way there
        self._timers_from_ms: Mapping[str, int] = {}  # see `Progress`
        self._opened = False

    def open(self, context: OperatorContext) -> None:
        self.context = context
        self.metrics = context.metrics
        self.backend: KeyedBackend = context.open_keyed()
        self._opened = True
        groups = self.backend.key_group_first, self.backend.key_group_last
        progress = restored_progress(context.restored, self.name, *groups)
        self._watermark_ms = progress.watermark_ms
        self._floors = Floors(progress.floors, context.max_parallelism) if progress.floors else None
        self._emit_ns = progress.emit_ns
        self._state_columns = progress.state_columns
        self._state_types = restored_columns(context.restored, self.name)
        self._going_to_ms = progress.going_to_ms
        self._timers_from_ms = progress.timers_from_ms
        if progress.schema:
            stored = plain_schema(schema_of(progress.schema))  # older releases kept dictionary types
            self._bind(columns_to_bind(self._columns, self._fixed, stored, self._declared, self.where))
        if self._declared is not None:
            self._accept(self._declared)

    def snapshot(self, checkpoint: int) -> Capture:
        self.backend.freeze(checkpoint)
        floors = self._floors.above(self._watermark_ms) if self._floors is not None else ()
        progress = Progress(
            self._watermark_ms,
            self._emit_ns,
            self._bound_bytes,
            floors=floors,
            state_columns=self._state_columns,
            going_to_ms=self._going_to_ms,
            timers_from_ms=self._timers_from_ms,
        )
        values = {VALUE: progress.encode()}
        if self._bound is not None:
            values[KEYS] = keys_said(self._bound, self._key_columns).encode()
            if self._state_columns:
                values[COLUMNS] = StateColumns(tuple(self._state_types.items())).encode()
        if self.definition:
            values[DEFINITION] = self.definition.encode()
        return Capture(values=values, keyed=self.backend)

    def on_complete(self, checkpoint: int) -> None:
        self.backend.completed(checkpoint)

    def on_abort(self, checkpoint: int) -> None:
        self.backend.aborted(checkpoint)

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self.backend.close()

    def _check(self, schema: pa.Schema) -> None:
        """Called per batch: almost always the very same schema object."""
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

    def _bind(self, columns: pa.Schema) -> None:
        self._bound = columns
        self._bound_bytes = schema_bytes(columns)
        self.codec = KeyCodec(columns, self._key_columns, self.where)
        self.bind(columns)

    def _row_floors(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        """Event time at each row, as its key group had it before rescaling or as the subtask has it; None where that is
        the subtask's watermark for all of them."""
        if self._floors is None:
            return None
        if not self._floors.above(self._watermark_ms):
            self._floors = None
            return None
        return self._floors.watermarks([rows.column(key) for key in self._key_columns], self._watermark_ms)

    def _row_watermarks(self, batch: Batch) -> npt.NDArray[np.int64] | None:
        """Event time at each row; None where it is the subtask's watermark for all of them."""
        reached, floors = batch.reached, None if self._floors is None else self._row_floors(batch.rows)
        if reached is None or not len(reached) or reached[-1] <= self._watermark_ms:
            return floors
        return np.maximum(reached, self._watermark_ms if floors is None else floors)

    def _column_table(
        self, name: str, columns: Mapping[str, tuple[str, Any]], added: Collection[str], evictable: bool = False
    ) -> ColumnTable:
        """The one columnar table of an operator (see `KeyedBackend.column_table`). Where the restored state has other
        columns, or in another order, its rows are made anew: what is new is at its initial value in all of them, what
        is gone is dropped. (Whether it may be was asked before the run began.) Raises `InvalidJob` for state of a
        release that did not say its columns' types."""
        types = {column: np.dtype(kind).str for column, (kind, _) in columns.items()}
        before: dict[str, str] | None = None
        if self._state_types:
            before = self._state_types if list(self._state_types.items()) != list(types.items()) else None
        elif self._state_columns:  # of a release that named its columns, but not their types
            if not types.keys() - set(added) <= set(self._state_columns) <= types.keys():
                raise other_columns(self.name, name, ", ".join(self._state_columns))
            stored = {column: types[column] for column in self._state_columns}
            before = stored if [column for column in types if column in stored] != list(stored) else None
        self._state_types, self._state_columns = types, tuple(types)
        return self.backend.column_table(name, columns, len(self._key_columns), evictable, added, before)

    def _known_columns(self) -> frozenset[str]:
        """Names of the columns that the restored state has; empty where there is none, or it does not say."""
        return frozenset(self._state_types or self._state_columns)

    def bind(self, columns: pa.Schema) -> None:
        """Open the state tables. Called once: at `open` when types are known, else at the first batch."""

    def on_input_schema(self, schema: pa.Schema) -> None:
        """The input has this schema from now on."""
